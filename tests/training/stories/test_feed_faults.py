"""What a store may do to a feed: each fault ends in an error that names the file, never in an endless wait."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from feed_tables import append, changed, encoded, image_rows, in_a_process, write_layout

from lakelens import DeltaFeed
from lakelens.errors import DataFileError, EmptyFeedError, FeedError, FeedStalledError, VersionFilesMissingError

pytestmark = pytest.mark.system


def batches(
    feed: DeltaFeed, global_batch_size: int = 5, rank: int = 0, size: int = 1, **options
) -> Iterator[list[int]]:
    for columns, weights in feed.as_column_numpy(global_batch_size, rank, size, columns=["label"], **options):
        yield columns["label"][weights > 0].tolist()


def two_files(location: Path) -> DeltaFeed:
    """20 rows in each of two files, in stored order: the second file is opened well after the first step."""
    return DeltaFeed(write_layout(location, [20, 20], row_group_rows=5), shuffle=False)


def read_later(feed: DeltaFeed) -> Path:
    """The file whose rows come last in an epoch."""
    return Path(feed.plan.file_location(1))


def stalled_file(feed: DeltaFeed) -> Path:
    """Puts a pipe in the place of the file that is read later: whoever opens it waits."""
    file = read_later(feed)
    file.unlink()
    os.mkfifo(file)
    return file


def test_vacuum_after_planning_is_found_by_a_look_and_named_where_it_is_read(tmp_path):
    feed = two_files(tmp_path / "t")
    DeltaTable(str(tmp_path / "t")).delete("label >= 20")
    DeltaTable(str(tmp_path / "t")).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(VersionFilesMissingError, match=r"t@1: 1 of its 2 data file\(s\) are gone: .*\.parquet"):
        DeltaFeed(tmp_path / "t", version=1)
    with pytest.raises(VersionFilesMissingError, match=r"t@1: .*\.parquet.*VACUUM"):
        list(batches(feed))


def test_a_file_that_was_cut_short_is_named_while_planning_and_while_reading(tmp_path):
    feed = two_files(tmp_path / "t")
    cut = read_later(feed)
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(DataFileError, match=f"{cut.name} cannot be read as Parquet"):
        DeltaFeed(tmp_path / "t")
    with pytest.raises((DataFileError, FeedError), match=f"{cut.name} cannot be read"):
        list(batches(feed))


def test_a_file_that_is_another_than_the_committed_one_is_refused(tmp_path):
    feed = two_files(tmp_path / "t")
    pq.write_table(pq.read_table(read_later(feed))[:7], read_later(feed))
    with pytest.raises(FeedError, match=r"holds 7 rows, 20 were planned; the file differs from the committed file"):
        list(batches(feed))


def test_a_disk_that_stalls_ends_planning_with_the_file(tmp_path):
    stalled = stalled_file(two_files(tmp_path / "t"))
    with pytest.raises(FeedStalledError, match=rf"t@1: .*{stalled.name} has not answered for 1 s; .*stall_timeout_s"):
        DeltaFeed(tmp_path / "t", stall_timeout_s=1.0)


def test_a_disk_that_stalls_ends_an_epoch_and_the_process_with_it(tmp_path):
    feed = two_files(tmp_path / "t")
    stalled = stalled_file(feed)
    code = (
        "try:\n"
        "    for batch in sent.as_column_numpy(5, columns=['label'], read_timeout_s=3.0): pass\n"
        "except FeedStalledError as error: print(error)\n"
    )
    assert f"{stalled.name} has not answered for 3 s" in in_a_process(code, feed)


@pytest.mark.parametrize(
    ("loop", "said"),
    [
        ("for n, _ in enumerate(sent.as_column_numpy(5, columns=['label'])):\n        if n == 2: break", "over"),
        ("list(sent.as_numpy(5))", "does not decode"),
    ],
)
def test_a_read_ahead_that_hangs_holds_up_neither_a_break_nor_the_error_of_a_row(tmp_path, loop, said):
    images = [encoded(n) if n != 7 else b"no image" for n in range(20)]
    for _ in range(2):
        append(tmp_path / "t", changed(image_rows(range(20)), image=images))
    feed = DeltaFeed(tmp_path / "t", shuffle=False)
    stalled_file(feed)
    code = f"try:\n    {loop}\n    print('over')\nexcept BadRowError as error: print(error)\n"
    assert said in in_a_process(code, feed)


def test_a_table_without_rows_is_refused_before_anything_is_read(tmp_path):
    write_layout(tmp_path / "t", [4])
    DeltaTable(str(tmp_path / "t")).delete()
    with pytest.raises(EmptyFeedError, match="t@1 holds no rows; there is nothing to feed"):
        DeltaFeed(tmp_path / "t")
