"""A table in S3: a real server, delta-rs for the log, obstore and Petastorm for the rows, and what goes wrong there."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
from feed_tables import colour_of, flat, in_a_process, write_layout
from s3_server import ACCESS_KEY, BUCKET, MISSING, SECRET_KEY, S3Server, s3_server
from snapshots import open_snapshot

from lakelens import DeltaFeed
from lakelens.errors import (
    FeedStalledError,
    InvalidArgumentError,
    NotADeltaTableError,
    StoreError,
    VersionFilesMissingError,
)
from lakelens.stores.data_files import read_bytes

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} not installed: pip install 'lakelens[dev]'"),
]

# Reads every row in another process.
COUNT = "print(sum(weights.sum() for _, weights in sent.as_column_numpy(9, columns=['label'])))"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """40 rows in files of 15, 20 and 5, in a folder whose name needs quoting."""
    return write_layout(tmp_path_factory.mktemp("s3") / "local", [15, 20, 5], row_group_rows=4)


@pytest.fixture(scope="module")
def table(server, local) -> str:
    return server.upload(local, "tables/50% of é")


def labels(feed: DeltaFeed, **options) -> list[int]:
    batches = feed.as_column_numpy(6, 0, 1, columns=["label", "split"], **options)
    return flat(columns["label"][weights > 0].tolist() for columns, weights in batches)


def test_a_table_in_s3_is_planned_and_read_as_the_same_table_on_a_disk(server, local, table):
    location = table.replace("s3:", "s3a:", 1)
    feed = DeltaFeed(location, 2, split="train", seed=4, storage_options=server.storage_options)
    assert (feed.location, feed.version, feed.rows) == (location, 2, 40)
    assert labels(feed) == labels(DeltaFeed(local, 2, split="train", seed=4))
    # The time of a version is that of its file in the log, so a copy's versions have other ones.
    first, committed = (open_snapshot(location, version, server.storage_options).timestamp for version in (0, 1))
    assert first < committed
    assert open_snapshot(location, committed, server.storage_options).version == 1
    images, numbers, _ = next(feed.as_numpy(4, 0, 1, dtype="uint8"))
    wanted = np.array([colour_of(number) for number in numbers])[:, None, None, :]
    assert np.abs(images.astype(int) - wanted).max() <= 4


def test_secrets_stay_in_the_environment_and_out_of_what_ranks_receive(server, table, monkeypatch, caplog):
    monkeypatch.setenv("LAKE_KEY", ACCESS_KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    secret = {"aws_access_key_id": "env:LAKE_KEY", "aws_secret_access_key": "env:LAKE_SECRET"}
    secret["aws_s3_allow_unsafe_rename"] = "true"  # which delta-rs knows alone
    with caplog.at_level("DEBUG", logger="lakelens"):
        feed = DeltaFeed(table, storage_options={**server.storage_options, **secret})
        assert sorted(labels(feed)) == list(range(40))
    assert SECRET_KEY.encode() not in pickle.dumps(feed)
    assert SECRET_KEY not in caplog.text + repr(feed) + repr(feed.plan)
    assert float(in_a_process(COUNT, feed)) == 40
    monkeypatch.delenv("LAKE_SECRET")
    with pytest.raises(InvalidArgumentError, match=r"aws_secret_access_key .* variable LAKE_SECRET, which is not set"):
        open_snapshot(feed.plan.snapshot.table)


def test_a_commands_result_goes_into_a_bucket_too(server, table):
    given = {key.upper(): value for key, value in server.storage_options.items()}
    place = f"s3://{BUCKET}/results/counts.json"
    code = "import sys, lakelens.jobs.cli as cli; sys.exit(cli.main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "table", "tracked", table, "--result-file", place]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **given})
    assert done.returncode == 0, done.stderr
    assert json.loads(server.get("results/counts.json")) == json.loads(done.stdout.splitlines()[-1])


def test_a_place_without_a_table_and_a_bucket_that_is_not_there_are_refused_by_their_uris(server, table):
    with pytest.raises(NotADeltaTableError, match="holds no Delta table"):
        DeltaFeed(f"s3://{BUCKET}/nothing", storage_options=server.storage_options)
    with pytest.raises(StoreError, match=f"s3://{BUCKET}-gone/t: there is no such bucket or container"):
        DeltaFeed(f"s3://{BUCKET}-gone/t", storage_options=server.storage_options)


def test_a_store_that_goes_away_while_rows_are_read_is_an_error_that_names_the_file(server, table, monkeypatch):
    monkeypatch.setenv("LAKE_ENDPOINT", server.endpoint)
    moving = {"aws_endpoint_url": "env:LAKE_ENDPOINT", "max_retries": "1"}
    feed = DeltaFeed(table, storage_options={**server.storage_options, **moving})
    monkeypatch.setenv("LAKE_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(StoreError, match=r"\.parquet cannot be reached in its store: .*storage_options"):
        labels(feed)


def test_credentials_may_be_those_of_an_aws_profile(server, table, tmp_path, monkeypatch):
    (tmp_path / "keys").write_text(f"[lake]\naws_access_key_id={ACCESS_KEY}\naws_secret_access_key={SECRET_KEY}\n")
    (tmp_path / "config").write_text("[profile lake]\nregion=us-east-1\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    options = {key: value for key, value in server.storage_options.items() if "key" not in key}
    options["aws_force_credential_load"] = "true"  # delta-rs looks for profiles only at Amazon's own endpoints
    monkeypatch.setenv("AWS_PROFILE", "lake")
    made = "from lakelens import DeltaFeed; sent = DeltaFeed(sent[0], storage_options=sent[1]); "
    assert float(in_a_process(made + COUNT, (table, options))) == 40
    monkeypatch.setenv("AWS_PROFILE", "gone")
    with pytest.raises(InvalidArgumentError, match=r"s3://images: AWS_PROFILE cannot be used: .*could not be found"):
        read_bytes(f"{table}/a", options)


def test_a_forked_process_is_told_at_once_that_it_cannot_read_from_a_store(server, table):
    feed = DeltaFeed(table, storage_options=server.storage_options)
    code = (
        "def read(): return sum(w.sum() for _, w in sent.as_column_numpy(9, columns=['label']))\n"
        "print(read(), flush=True)\n"
        "if os.fork(): os.wait(); sys.exit()\n"
        "try: read()\n"
        "except Exception as error: print(type(error).__name__, error, flush=True)\n"
        "os._exit(0)\n"
    )
    rows, error = in_a_process(code, feed).splitlines()
    assert float(rows) == 40
    assert "this process is the fork of one that has used " in error
    assert "forkserver" in error


def test_objects_that_are_gone_are_an_error_before_the_first_step_that_names_them(server, local):
    location = server.upload(local, "gone")
    feed = DeltaFeed(location, storage_options=server.storage_options)
    gone = feed.plan.file_location(1)
    server.remove(gone.removeprefix(f"s3://{BUCKET}/"))
    with pytest.raises(VersionFilesMissingError, match=r"gone@2: 1 of its 3 data file\(s\) are gone: .*\.parquet"):
        DeltaFeed(location, 2, storage_options=server.storage_options)
    with pytest.raises(VersionFilesMissingError, match=rf"gone@2: .*{gone}"):
        labels(feed)


def test_a_store_that_stalls_is_an_error_while_planning_and_while_reading(server, table):
    feed = DeltaFeed(table, lanes=1, storage_options=server.storage_options)
    batches = feed.as_column_numpy(3, 0, 1, columns=["label"], read_timeout_s=3.0)
    next(batches)
    with server.hanging():
        with pytest.raises(FeedStalledError, match=r"50% of é has not answered for 1 s; .*stall_timeout_s"):
            DeltaFeed(table, storage_options=server.storage_options, stall_timeout_s=1.0)
        with pytest.raises(FeedStalledError, match=r"\.parquet has not answered for 3 s; .*read_timeout_s"):
            for _ in batches:
                pass
    assert sorted(labels(feed)) == list(range(40))


def test_a_process_that_has_caught_the_error_of_a_stalled_store_ends_as_it_would_without(server, tmp_path):
    table = server.upload(write_layout(tmp_path, [40] * 6, row_group_rows=4), "many")
    feed = DeltaFeed(table, storage_options=server.storage_options)
    code = (
        "feed, server = sent\n"
        "batches = feed.as_numpy(3, 0, 1, prefetch=1, read_timeout_s=2.0)\n"
        "next(batches)\n"
        "os.kill(server, signal.SIGSTOP)\n"
        "try: list(batches)\n"
        "except FeedStalledError as error: print('caught')\n"
    )
    with server.hanging():
        server.process.send_signal(signal.SIGCONT)  # for the first batch
        assert in_a_process(code, (feed, server.process.pid)) == "caught\n"
