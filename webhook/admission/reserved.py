"""Decision keys: whoever holds one holds a card, so no tenant may write them.

The webhook takes them out of every new pod (`strip`). What it did not see, the guard policy of the chart
(`charts/tenure/files/guard.yaml`) denies; `forged` and `opened` are its two rules in Python, and one table of
cases holds both to the same answers.
"""

from collections.abc import Mapping

from service import names
from webhook.admission.draft import PodDraft
from webhook.admission.patch import MapEditor

_BEGINNINGS = (*names.DECISION_KEYS, names.ALLOCATION_PREFIX)


def is_decision_key(key: str) -> bool:
    """True for the two exact keys and for everything below the prefix."""
    return key in names.DECISION_KEYS or key.startswith(names.ALLOCATION_PREFIX)


def strip(draft: PodDraft) -> None:
    """Remove decision keys from annotations and labels."""
    meta = draft.pod.metadata
    for entries, kind in ((meta.annotations, "annotation"), (meta.labels, "label")):
        # First what answers for nearly every key, without a call of ours for each.
        keys = [key for key in entries or () if key.startswith(_BEGINNINGS) and is_decision_key(key)]
        if keys:
            _remove(draft.annotations if kind == "annotation" else draft.labels, keys)
            draft.stripped_keys += len(keys)
            more = f" and {len(keys) - 1} more" if len(keys) > 1 else ""
            draft.warn(f"{kind} {keys[0][:60]}{more} was removed: only Tenure writes it")


def _remove(editor: MapEditor, keys: list[str]) -> None:
    for key in keys:
        editor.remove(key)


def forged(old: Mapping[str, str] | None, new: Mapping[str, str] | None) -> list[str]:
    """The decision keys that a write sets, changes or removes; `old` is empty at CREATE and for bindings."""
    before, after = old or {}, new or {}
    keys = sorted(key for key in before.keys() | after.keys() if is_decision_key(key))
    return [key for key in keys if before.get(key) != after.get(key)]


def opened(old: list[str], new: list[str]) -> bool:
    """True when a write takes our gate away; `old` and `new` are names of scheduling gates."""
    return names.GATE in old and names.GATE not in new
