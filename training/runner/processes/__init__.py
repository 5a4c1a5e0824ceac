"""One rank's process: started, watched, reported on and ended, with nothing left behind. Start: `supervisor`."""
