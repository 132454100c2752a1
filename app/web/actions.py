"""Changes through the page: a policy, re-sent dead letters, the resume position of a halted partition.

POST /actions/policy        stream (none: all), deduplicate: on, off or unset
POST /actions/dead-letters  stream, reason, partition, offset, limit, again, unjudged, now
POST /actions/resume        stream, partition, from, reason, forget, recount, adopt

Without the field `execute`, the last two change nothing: they describe the change, and show a form that makes it. Each
action calls the same function as the command of its name. These addresses exist only if `web.write` is set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from aiohttp import web

from kafka_ratchet.app.settings import Settings
from kafka_ratchet.app.status.lookup import QueryError
from kafka_ratchet.app.web.access import ACCESS, FORM_MARK, caller_of, peer
from kafka_ratchet.app.web.readings import BOOTSTRAP
from kafka_ratchet.app.web.render import SETTINGS, html_response, json_response, refusal, wants_json
from kafka_ratchet.errors import RatchetError, SettingsError

log = structlog.get_logger(__name__)

EXECUTE: Final = "execute"
TEXT_MOST: Final = 1_000
"""Maximum number of characters of a form field."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """Result of an action.

    Attributes:
        sentences: sentences for display
        executed: True: the change was made; False: it was only described
    """

    sentences: list[str]
    executed: bool


class PostedForm:
    """Fields of a posted form, by name.

    Raises:
        SettingsError: a field is unknown to the action, or too long.
    """

    def __init__(self, fields: Mapping[str, str], known: frozenset[str]) -> None:
        for name, value in fields.items():
            if name not in known:
                raise SettingsError(f"this form has no field {name[:40]!r}: leave it out")
            if len(value) > TEXT_MOST:
                raise SettingsError(f"{name}: the field takes at most {TEXT_MOST:,} characters")
        self._fields = fields

    def text(self, name: str) -> str | None:
        """Return the text of a field; None if the field is empty or missing."""
        return self._fields.get(name, "").strip() or None

    def is_set(self, name: str) -> bool:
        """Return True if a check box was ticked."""
        return self.text(name) is not None


Carry = Callable[[Settings, str, PostedForm, str], ActionResult]


@dataclass(frozen=True, slots=True)
class Action:
    """Change that users can make through the page.

    Attributes:
        path: path of the POST.
        title: title of the answering page.
        fields: names of the form's fields.
        carry_out: blocking function that makes the change. It takes settings, bootstrap, form, and the user to record.
        is_asked_twice: True: without the field `EXECUTE`, the action only describes the change.
    """

    path: str
    title: str
    fields: frozenset[str]
    carry_out: Carry
    is_asked_twice: bool


def _policy(settings: Settings, bootstrap: str, form: PostedForm, by: str) -> ActionResult:
    from kafka_ratchet.app.operations.policy_topic import application_sentence, write_policy
    from kafka_ratchet.app.verify.newest import refuse_without_sequence

    stream, chosen = form.text("stream"), form.text("deduplicate")
    if stream is not None:
        settings.stream(stream)
    choices = {"on": True, "off": False, "unset": None}
    if chosen not in choices:
        raise SettingsError("the field deduplicate is missing or invalid. Write on, off or unset")
    if chosen == "on":
        refuse_without_sequence(settings, bootstrap, stream)
    offset = write_policy(settings, bootstrap, stream, choices[chosen], by)
    whose = "all streams" if stream is None else stream
    written = f"The policy of {whose} is {chosen}, at offset {offset}."
    return ActionResult([f"{written} {application_sentence(settings, bootstrap)}."], True)


def _replay(settings: Settings, bootstrap: str, form: PostedForm, by: str) -> ActionResult:
    from kafka_ratchet.app.dead_letters.asked import replay_letters, sentences, wanted_of
    from kafka_ratchet.app.dead_letters.replay import Options

    name, _ = settings.stream(form.text("stream"))
    wanted = wanted_of(*(form.text(each) for each in ("reason", "partition", "offset", "limit")))
    options = Options(form.is_set("again"), form.is_set("unjudged"), form.is_set("now"))
    executed = form.is_set(EXECUTE)
    outcome = replay_letters(settings, bootstrap, name, wanted, options, dry_run=not executed)
    return ActionResult(sentences(outcome), executed)


def _resume(settings: Settings, bootstrap: str, form: PostedForm, by: str) -> ActionResult:
    from kafka_ratchet.app.operations.resume import Resume, ResumeOptions
    from kafka_ratchet.app.operations.resume_asked import numbers_of, sentences

    name, _ = settings.stream(form.text("stream"))
    executed, reason = form.is_set(EXECUTE), form.text("reason") or ""
    if executed and not reason:
        raise SettingsError("the field reason is empty. Write the reason, which the changelog records")
    flags = {each: form.is_set(each) for each in ("forget", "adopt", "recount")}
    decision = Resume(settings, bootstrap, name, ResumeOptions(form.text("from"), reason, **flags), by)
    numbers = numbers_of(form.text("partition"), decision)
    plans = asyncio.run(decision.execute(numbers) if executed else decision.plan(numbers))
    said = [line for plan in plans for line in sentences(plan, done=executed)]
    return ActionResult([*said, *([] if executed else ["Nothing was changed."])], executed)


ACTIONS: Final = (
    Action("/actions/policy", "Policy", frozenset({"stream", "deduplicate"}), _policy, is_asked_twice=False),
    Action(
        "/actions/dead-letters",
        "Replay of dead letters",
        frozenset({"stream", "reason", "partition", "offset", "limit", "again", "unjudged", "now", EXECUTE}),
        _replay,
        is_asked_twice=True,
    ),
    Action(
        "/actions/resume",
        "Resume",
        frozenset({"stream", "partition", "from", "reason", "forget", "recount", "adopt", EXECUTE}),
        _resume,
        is_asked_twice=True,
    ),
)
ACTION_PATHS: Final = frozenset(action.path for action in ACTIONS)


def add_actions(application: web.Application) -> None:
    """Add the addresses for changes to the application. Call it only if `web.write` is set."""
    for action in ACTIONS:
        application.router.add_post(action.path, _handler(action))


def _handler(action: Action) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(request: web.Request) -> web.Response:
        return await _answer(request, action)

    return answer


async def _answer(request: web.Request, action: Action) -> web.Response:
    access, caller = request.app[ACCESS], caller_of(request)
    if not access.may_write(caller):
        return refusal(request, 403, "changes through the page need its token: log in")
    fields = await _fields_of(request)
    if (why := access.why_not(request, fields.pop(FORM_MARK, ""))) is not None:
        log.warning("audit", action=action.title, outcome="refused", by=caller.name, address=peer(request), reason=why)
        return refusal(request, 403, why)
    by = f"{caller.name}, from {peer(request)} by the page"
    changes = not action.is_asked_twice or EXECUTE in fields
    # A warning: no log level may leave it out. Before it is done, and after: whatever happens in between.
    audit = log.bind(action=action.title, by=by, **{f"asked_{name}": text for name, text in fields.items()})
    if changes:
        audit.warning("audit", outcome="begun")
    try:
        form = PostedForm(fields, action.fields)
        done = await asyncio.to_thread(action.carry_out, request.app[SETTINGS], request.app[BOOTSTRAP], form, by)
    except RatchetError as error:
        if changes:
            audit.warning("audit", outcome="failed", reason=str(error))
        if wants_json(request):
            return refusal(request, 400, str(error))
        return _shown(request, action, fields, None, str(error), 400)
    if done.executed:
        audit.warning("audit", outcome="done", said=" ".join(done.sentences))
    if wants_json(request):
        return json_response({"executed": done.executed, "sentences": done.sentences})
    return _shown(request, action, fields, done)


async def _fields_of(request: web.Request) -> dict[str, str]:
    """Return the fields of a posted form, by name.

    Raises:
        QueryError: a field is given twice, or is a file.
    """
    posted = await request.post()
    fields: dict[str, str] = {}
    for name, value in posted.items():
        if not isinstance(value, str) or name in fields:
            raise QueryError(f"the field {name[:40]!r} is given twice, or is a file")
        fields[name] = value
    return fields


def _shown(
    request: web.Request,
    action: Action,
    fields: Mapping[str, str],
    done: ActionResult | None,
    problem: str | None = None,
    status: int = 200,
) -> web.Response:
    context = {"action": action, "fields": fields, "done": done, "problem": problem, "execute": EXECUTE}
    return html_response(request, "action.html", context, status)
