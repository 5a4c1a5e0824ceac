"""Which versions must stay: pins and the runs that read them, and the lock that VACUUM respects. Door: `pins`."""
