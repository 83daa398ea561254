"""Levels and rules: what the settings ask for."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from w3lib.url import canonicalize_url

from scrapy_bloom.canonical.steps import STEPS, Tier

LEVELS: dict[str, frozenset[Tier]] = {
    "scrapy": frozenset(),
    "safe": frozenset({"safe"}),
    "usual": frozenset({"safe", "usual"}),
}
DEFAULT_LEVEL = "safe"
OPT_IN = tuple(step.name for step in STEPS if step.tier == "opt-in")
EVERYWHERE = "*"


@dataclass(frozen=True, slots=True)
class Rule:
    """What is asked for everywhere, or for one domain and its subdomains.

    Attributes:
        level: One of `LEVELS`, None for that of the wider rule.
        steps: Names of opt-in steps.
        drop: Parameter names (or beginnings with ``*``) to drop.
        keep: Parameter names (or beginnings with ``*``) that no step drops.
        keep_only: If given, the only parameters to keep.

    """

    level: str | None = None
    steps: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    keep_only: tuple[str, ...] | None = None

    def plus(self, narrower: "Rule") -> "Rule":
        """Return this rule with the one of a domain within added to it."""
        return Rule(
            level=narrower.level or self.level,
            steps=self.steps + narrower.steps,
            drop=self.drop + narrower.drop,
            keep=self.keep + narrower.keep,
            keep_only=self.keep_only if narrower.keep_only is None else narrower.keep_only,
        )


_KEYS = tuple(field.name for field in fields(Rule))


def check_level(level: object, where: str) -> str:
    """Return *level*; raise ValueError, naming the setting *where*, for one there is not."""
    if isinstance(level, str) and level in LEVELS:
        return level
    raise ValueError(f"{where} is {level!r}, expected one of {', '.join(LEVELS)}.")


def check_names(names: object, where: str) -> tuple[str, ...]:
    """Return *names* as a tuple; raise ValueError unless they are a list of non-empty strings."""
    if isinstance(names, Iterable) and not isinstance(names, (str, bytes, Mapping)):
        listed = tuple(names)
        if all(isinstance(name, str) and name.strip("*") for name in listed):
            return listed
    raise ValueError(f"{where} is {names!r}, expected a list of parameter names.")


def read_rules(setting: object, where: str) -> dict[str, Rule]:
    """Read ``BLOOM_CANONICAL_RULES``.

    Args:
        setting: A dict from domain (or ``*`` for all) to a dict with any of ``level``,
            ``steps``, ``drop``, ``keep`` and ``keep_only``.
        where: The name of the setting, for errors.

    Returns:
        The rules by domain, as it is spelled in canonical URLs.

    Raises:
        ValueError: For anything else, with what was found and what is expected.

    """
    if not isinstance(setting, Mapping):
        raise ValueError(f"{where} is {setting!r}, expected a dict from domain to rule.")
    return {
        _domain(domain, where): _read_rule(rule, f"{where}[{domain!r}]")
        for domain, rule in setting.items()
    }


def _read_rule(rule: object, where: str) -> Rule:
    if not isinstance(rule, Mapping):
        raise ValueError(f"{where} is {rule!r}, expected a dict with {', '.join(_KEYS)}.")
    for key in rule:
        if key not in _KEYS:
            raise ValueError(f"{where} has the key {key!r}, expected {', '.join(_KEYS)}.")
    read: dict[str, Any] = {
        key: check_names(names, f"{where}[{key!r}]")
        for key, names in rule.items()
        if key != "level" and names is not None
    }
    for step in read.get("steps", ()):
        if step not in OPT_IN:
            raise ValueError(
                f"{where}['steps'] has {step!r}, expected some of {', '.join(OPT_IN)}."
            )
    if rule.get("level") is not None:
        read["level"] = check_level(rule["level"], f"{where}['level']")
    return Rule(**read)


def _domain(domain: object, where: str) -> str:
    """Spell *domain* as canonical URLs do; raise ValueError if it cannot be a host name."""
    if domain == EVERYWHERE:
        return EVERYWHERE
    if isinstance(domain, str) and domain and not set(domain) & set("/:@?#* "):
        try:
            return canonicalize_url(f"http://{domain}/")[len("http://") : -1].strip(".")
        except ValueError:
            pass
    raise ValueError(
        f"{where} has the domain {domain!r}, expected a host name such as example.com,"
        f" without scheme, port or path, or {EVERYWHERE!r} for all."
    )
