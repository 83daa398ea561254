"""Names of parameters: as settings and rules write them, and those of tracking parameters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Names:
    """A set of parameter names. Some entries are only the beginning of a name.

    Upper and lower case differ. A name is compared after its escapes are decoded, once.

    >>> "utm_source" in Names.of(["sid", "utm_*"])
    True

    Attributes:
        exact: whole names.
        prefixes: beginnings of names.
    """

    exact: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    @classmethod
    def of(cls, patterns: Iterable[str]) -> Names:
        """Return the set that `patterns` describe: names, or beginnings followed by ``*``."""
        patterns = frozenset(patterns)
        prefixes = frozenset(pattern for pattern in patterns if pattern.endswith("*"))
        return cls(patterns - prefixes, tuple(sorted(prefix[:-1] for prefix in prefixes)))

    def __contains__(self, name: str) -> bool:
        """Return whether an entry matches `name`."""
        return name in self.exact or name.startswith(self.prefixes)


@dataclass(frozen=True, slots=True)
class Params:
    """What settings and rules say about the parameters of one host.

    Attributes:
        drop: parameters that the step ``drop`` removes.
        keep: parameters that no step removes.
        keep_only: if given, the step ``keep_only`` removes all others.
    """

    drop: Names = Names()
    keep: Names = Names()
    keep_only: Names | None = None


TRACKING_PARAMS: Final = (
    # Google Analytics, Matomo, HubSpot ads: all names with this beginning
    *("utm_*", "mtm_*", "hsa_*"),
    # click identifiers of ad networks
    *("fbclid", "gclid", "gclsrc", "dclid", "gbraid", "wbraid", "msclkid", "twclid", "ttclid"),
    *("yclid", "ysclid", "irclickid", "rb_clickid", "srsltid"),
    # mail campaigns: Mailchimp, Marketo, HubSpot, Vero, Omeda
    *("mc_eid", "mc_cid", "mkt_tok", "_hsenc", "_hsmi", "__hssc", "__hstc", "__hsfp"),
    *("hsCtaTracking", "vero_id", "vero_conv", "oly_anon_id", "oly_enc_id"),
    # counters: OpenStat, Facebook, Wicked Reports, Adobe, Google Analytics across domains
    *("_openstat", "fb_action_ids", "fb_action_types", "fb_source", "fb_ref", "wickedid", "s_cid"),
    *("_ga", "_gl"),
)
"""Parameters that say where a visitor came from, and not which page is asked for.

Level ``usual`` drops them if they have a value. The list is short on purpose. Each name is on
several public lists (of browsers, ad blockers and link cleaners), has one known sender, and is not
a word that a site might use for something else. So `ref`, `source`, `sid`, `cid`, `page`, `id` and
`keyword` are not on the list.
"""
