"""Recognition of files read before, by their content instead of their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kafka_ratchet.errors import SourceError
from kafka_ratchet.producers.compression import compression_of
from kafka_ratchet.producers.file_mark import ContentDigest, FileMark, Finished, Place, chained, compare
from kafka_ratchet.producers.files import FileSource
from kafka_ratchet.producers.folder import PresentFile, RotationUnclear, tag_of


@dataclass(frozen=True, slots=True)
class FilePosition:
    """Position in the file being read."""

    end: int
    """Offset in uncompressed bytes; 0: nothing was read."""
    digest: str
    name: str
    device: int
    inode: int
    mark: FileMark | None = None
    """Mark that identifies the file; None: this run has read the file itself."""
    unread: Place | None = None
    """Place of the file, if nothing of it was read; None: unknown."""


class FileRecogniser:
    """Recogniser of files read before: it finds them among the present files by their content.

    Files keep their order, whatever their names: rotation renames all of them, but never changes which is older. A
    digest is kept as long as a file has the same device, inode, size and time of change, so a renamed log is not read
    again.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._digests: dict[tuple[tuple[int, int, int, int], int | None], ContentDigest] = {}

    def find(
        self, found: Sequence[PresentFile], before: Sequence[Finished], older: int, chain: str, place: FilePosition
    ) -> tuple[list[PresentFile | None], int]:
        """Recognise the files read before among the present files, whatever their names now.

        Returns:
            The present file for each finished one, or None if rotation removed it; and the index in `found` of the
            file being read.

        Args:
            found: present files, in their order.
            before: newest finished files, with one digest each.
            older: number of finished files before these, which share one digest.
            chain: shared digest of the older files.
            place: position in the file after the finished ones.

        Raises:
            RotationUnclear: the file being read is missing or present twice, or the files' order is not clear yet.
            SourceError: the present files cannot be the files read before.
        """
        places, index = self._finished(found, before, older, chain)
        gone = [each for each, at in zip(before, places[older:], strict=True) if at is None]
        if not place.end:
            # If the file is unchanged and unread, no other file can have come and gone.
            is_known = index < len(found) and found[index].place == place.unread
            if places and places[-1] is None and not is_known:
                raise RotationUnclear(self._changed(None, before[-1], found))
            self._refuse_published(found[index:], gone)
            return places, index
        logs = {
            file.base
            for at, file in enumerate(found)
            if at == index or file.path.name == place.name or (file.device, file.inode) == (place.device, place.inode)
        }
        same = [at for at in range(index, len(found)) if found[at].base in logs and self._begins(found[at], place)]
        if not same:
            raise RotationUnclear(self._not_there(found[index : index + 1], place))
        first = found[same[0]]
        if len(same) > 1 and (first.device, first.inode) != (place.device, place.inode):
            names = " and ".join(found[at].path.name for at in same[:2])
            raise RotationUnclear(
                f"{self._where}: {names} both begin with the {place.end} bytes already read from {place.name}, so it "
                "is unclear which one continues it. If one is a copy of the other, move the copy out of the folder. If "
                "a program has restarted its log with the same bytes, leave both, and publish under another producer "
                "name. It publishes both from their beginning, so events sent before are sent again"
            )
        if same[0] > index:
            odd = found[index].path.name
            changed = next((each for each in gone if each.name == odd), None)
            raise RotationUnclear(
                self._changed(found[index], changed, found)
                if changed
                else f"{self._where}: {odd} is new, and its name sorts before a known one "
                f"({first.path.name}): new files have to come after those already read. Give it a later name, or "
                "move it out of the folder and publish it under another producer name"
            )
        self._refuse_published(found[same[0] + 1 :], gone)
        return places, same[0]

    def digest(self, found: PresentFile, until: int | None = None) -> ContentDigest | None:
        """Return the digest of a file up to an offset; None: the file cannot be read.

        The file is read only if a program has written to it since the last call.
        """
        key = found.state, until
        if key not in self._digests:
            try:
                self._digests[key] = FileSource(found.path, format="lines").read_whole(until)
            except SourceError:  # such as a compressed file in the middle of being written
                return None
        return self._digests[key]

    def forget(self, found: Sequence[PresentFile]) -> None:
        """Remove the digests of files no longer present."""
        there = {file.state for file in found}
        self._digests = {key: digest for key, digest in self._digests.items() if key[0] in there}

    def _finished(
        self, found: Sequence[PresentFile], before: Sequence[Finished], older: int, chain: str
    ) -> tuple[list[PresentFile | None], int]:
        index = 0
        places: list[PresentFile | None] = []
        if older and not (before and found and self._may_be_gone(before[0], found)):
            text = ""
            for each in found[:older]:
                now = self.digest(each)
                text = chained(text, Finished("", now.size, now.text)) if now else "cannot be read"
            if len(found) < older or text != chain:
                raise SourceError(
                    f"{self._where}: one of the first {older} files has changed or is missing. Put back the "
                    "published file, or publish under another producer name"
                )
            index, places = older, list(found[:older])
        elif older:
            places = [None] * older
        for finished in before:
            file = found[index] if index < len(found) else None
            if file is not None and self._is(file, finished):
                places.append(file)
                index += 1
            elif self._may_be_gone(finished, found):
                places.append(None)
            else:
                raise RotationUnclear(self._changed(file, finished, found))
        return places, index

    def _refuse_published(self, new: Sequence[PresentFile], gone: Sequence[Finished]) -> None:
        """Refuse a finished file that would count as a new one, because its place in the order has changed.

        Equal content is no proof: the logs of two quiet days may be equal.
        """
        for finished in gone:
            for file in new if finished.size else ():
                # A new log may begin with the bytes of an earlier one, such as the column names.
                is_log = file.tag is None and tag_of(finished.name, file.base) is not None
                if not is_log and file.place == finished.place and self._is(file, finished):
                    known = "" if file.path.name == finished.name else f" (as {finished.name})"
                    raise RotationUnclear(
                        f"{self._where}: {file.path.name} is already published{known}, and its name sorts after a "
                        "newer file, so its lines would be published again. Give the newer file a later name, or move "
                        f"{file.path.name} out of the folder"
                    )

    def _is(self, file: PresentFile, finished: Finished) -> bool:
        if file.size != finished.size and not _compressed(file):
            return False
        now = self.digest(file)
        return now is not None and (now.size, now.text) == (finished.size, finished.digest)

    def _begins(self, file: PresentFile, place: FilePosition) -> bool:
        """Return True if a file begins with the bytes read of the file at `place`."""
        if file.size < place.end and not _compressed(file):
            return False
        now = self.digest(file, place.end)
        return now is not None and (now.size, now.text) == (place.end, place.digest)

    def _may_be_gone(self, finished: Finished, found: Sequence[PresentFile]) -> bool:
        """Return True if rotation may have removed a file, because other files of its log are present."""
        return any(tag_of(finished.name, base) is not None for base in {file.base for file in found})

    def _changed(self, file: PresentFile | None, finished: Finished, found: Sequence[PresentFile]) -> str:
        what = f"{finished.name} is gone"
        if file is not None and file.path.name == finished.name:
            what = (
                f"{file.path.name} has changed since it was read to its end: its bytes 0 to {finished.size} are "
                f"not the ones read, or it is longer ({file.size} bytes on disk)"
            )
        elif file is not None and finished.name in {other.path.name for other in found}:
            what = f"{file.path.name} is new, and its name sorts before a known one ({finished.name})"
        return (
            f"{self._where}: {what}: files are read in the order of their names, each to its end before the next file. "
            "Put back missing files, give new ones later names, or publish under another producer name. Logs that all "
            "grow are followed one by one: ratchet publish --follow FILE, each under a producer name of its own"
        )

    def _not_there(self, expected: Sequence[PresentFile], place: FilePosition) -> str:
        if expected and place.mark and expected[0].path.name == place.name and not _compressed(expected[0]):
            try:
                file = FileSource(expected[0].path, format="lines")
                with file.path.open("rb") as raw:
                    compare(raw, place.mark, file.changed)
            except (SourceError, OSError) as error:
                return str(error)
        return (
            f"{self._where}: the {place.end} bytes read of {place.name} are not the beginning of "
            f"{'any file there' if not expected else expected[0].path.name + ' or of a later one'}: it was changed, "
            "cut off or moved away before it was read to its end, and lines may be missing. Put it back (under the "
            "name that rotation gives it), or publish the present files under another producer name"
        )


def _compressed(file: PresentFile) -> bool:
    try:
        return compression_of(file.path) != ""
    except OSError:
        return False
