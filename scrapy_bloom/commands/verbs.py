"""What ``scrapy bloom`` can do."""

VERBS = {
    "plan": "compute pages, error rate or memory from the other two",
    "info": "show whose a filter is, how full it is, and how the crawl stands",
    "contains": "tell which pages a filter calls seen",
    "add": "mark pages as seen; make the filter where there is none",
    "forget": "let pages through again: the next request for each is new",
    "queue": "show what waits to be fetched; put the failed list back",
    "copy": "copy a filter, or a crawl with its requests, to another place",
    "delete": "delete a filter and its requests, if no crawl uses them",
    "canon": "show how URLs become canonical, and which are one page",
}
