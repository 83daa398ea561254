"""Parameters that say where a visitor came from, and not which page is asked for.

Level ``usual`` drops them if they have a value. The list is short on purpose. Each name is on
several public lists (of browsers, ad blockers and link cleaners), has one known sender, and is not
a word that a site might use for something else. So `ref`, `source`, `sid`, `cid`, `page`, `id` and
`keyword` are not on the list.
"""

from __future__ import annotations

TRACKING_PARAMS = (
    # Google Analytics, Matomo, HubSpot ads: all names with this beginning
    "utm_*",
    "mtm_*",
    "hsa_*",
    # click identifiers of ad networks
    "fbclid",
    "gclid",
    "gclsrc",
    "dclid",
    "gbraid",
    "wbraid",
    "msclkid",
    "twclid",
    "ttclid",
    "yclid",
    "ysclid",
    "irclickid",
    "rb_clickid",
    "srsltid",
    # mail campaigns: Mailchimp, Marketo, HubSpot, Vero, Omeda
    "mc_eid",
    "mc_cid",
    "mkt_tok",
    "_hsenc",
    "_hsmi",
    "__hssc",
    "__hstc",
    "__hsfp",
    "hsCtaTracking",
    "vero_id",
    "vero_conv",
    "oly_anon_id",
    "oly_enc_id",
    # counters: OpenStat, Facebook, Wicked Reports, Adobe, Google Analytics across domains
    "_openstat",
    "fb_action_ids",
    "fb_action_types",
    "fb_source",
    "fb_ref",
    "wickedid",
    "s_cid",
    "_ga",
    "_gl",
)
