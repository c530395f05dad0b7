"""Words in columns' names, and what a column is by its name only."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from recd_plugins.data.importing.surveying.column_survey import ColumnSurvey

__all__ = [
    "AFTER_FLAGS",
    "BEFORE_WORDS",
    "COUNT_WORDS",
    "EVENTS",
    "EVENT_WORDS",
    "GRADE_WORDS",
    "ID_WORDS",
    "LABEL_WORDS",
    "NO_LABEL_WORDS",
    "REQUESTS",
    "SESSION_WORDS",
    "TARGETS",
    "TIME_WORDS",
    "UNNAMED",
    "USER_WORDS",
    "WEIGHT_WORDS",
    "is_called",
    "is_duration",
    "is_index",
    "is_request",
    "is_split",
    "named_after",
    "names_label",
    "words_of",
]

LABEL_WORDS = frozenset(
    [
        "label",
        "labels",
        "target",
        "click",
        "clicks",
        "clicked",
        "clk",
        "conversion",
        "converted",
        "purchase",
        "purchased",
        "bought",
        "like",
        "liked",
        "y",
        "response",
        "is_click",
        "install",
    ]
)
TARGETS = frozenset(["label", "target", "y", "response"])
"""Names of labels, whatever numbers they hold."""
NO_LABEL_WORDS = frozenset(["verified"])
"""Names of columns that are known before the answer: verified_purchase of a review."""
GRADE_WORDS = frozenset(["rating", "ratings", "stars", "grade", "relevance", "overall"])
SESSION_WORDS = frozenset(["session", "sess", "sessionid", "visit", "visitid", "sid"])
REQUESTS = frozenset(
    f"{what}{id_}"
    for what in ("impression", "request", "query", "srch", "search")
    for id_ in ("_id", "id")
)
"""Names, without what is around them, of what has several rows that were shown together."""
OF_IDS = frozenset(["id", "ids", "list", "hist", "history", "seq", "sequence"])
"""Words that follow what a column's values name."""
TIME_WORDS = frozenset(
    ["time", "timestamp", "ts", "date", "datetime", "hour", "day", "created", "eventtime"]
)
WEIGHT_WORDS = frozenset(["weight", "weights"])
USER_WORDS = frozenset(
    [
        "user",
        "users",
        "uid",
        "userid",
        "customer",
        "member",
        "visitor",
        "visitorid",
        "account",
        "device",
        "reviewer",
    ]
)
ID_WORDS = frozenset(
    [
        "id",
        "ids",
        "item",
        "items",
        "user",
        "users",
        "uid",
        "userid",
        "itemid",
        "visitorid",
        "product",
        "sku",
        "category",
        "categories",
        "cat",
        "brand",
        "shop",
        "city",
        "country",
        "region",
        "zip",
        "type",
        "code",
        "ad",
        "ads",
        "campaign",
        "site",
        "domain",
        "app",
        "device",
        "model",
        "publisher",
        "genre",
        "genres",
        "tag",
        "tags",
        "keyword",
        "keywords",
        "history",
        "hist",
        "slot",
        "channel",
        "os",
        "browser",
        "hash",
        "gender",
        "sex",
        "occupation",
        "platform",
        "tab",
        "zipcode",
        "postcode",
        "cluster",
        "bucket",
        "segment",
        "cate",
        "language",
        "lang",
        "carrier",
        "weekday",
        "currency",
        "operator",
        "hourmin",
        "hhmm",
    ]
)
COUNT_WORDS = frozenset(
    [
        "count",
        "counts",
        "cnt",
        "num",
        "total",
        "sum",
        "avg",
        "mean",
        "median",
        "price",
        "amount",
        "cost",
        "income",
        "salary",
        "balance",
        "budget",
        "qty",
        "quantity",
        "age",
        "duration",
        "length",
        "width",
        "height",
        "size",
        "score",
        "vote",
        "votes",
        "views",
        "impressions",
        "followers",
        "pct",
        "percent",
        "ratio",
        "rate",
        "seconds",
        "secs",
        "minutes",
        "ms",
        "year",
        "depth",
        "position",
        "rank",
    ]
)
"""Names of what is counted or measured, whatever its numbers look like."""
EVENT_WORDS = frozenset(["event", "action", "behavior", "behaviour", "interaction"])
EVENTS = LABEL_WORDS | {
    "view", "pv", "impression", "cart", "addtocart", "buy", "order", "transaction", "fav", "play",
    "listen", "skip", "dislike", "unlike",
}  # fmt: skip
"""What a log says that a user did."""
AFTER_FLAGS = frozenset(
    [
        "follow", "share", "comment", "forward", "hate", "favorite", "long_view", "profile_enter",
    ]
)  # fmt: skip
"""What a user does with what was shown, with `is_` or without, as 0 or 1."""
AFTER_TIMES = frozenset(
    [
        "play_time", "watch_time", "watching_time", "watching_times", "stay_time", "dwell_time",
        "playtime", "dwell",
    ]
)  # fmt: skip
"""How long a user stayed with what was shown."""
BEFORE_WORDS = frozenset(
    ["avg", "average", "mean", "median", "total", "sum", "count", "cnt", "num", "hist", "history",
     "last", "prev", "previous", "past", "rate"]
)  # fmt: skip
"""Names of what is known from earlier rows."""
SPLITS = frozenset(["is_test", "is_train", "split", "fold"])
UNNAMED = "column_"
"""What the columns of a file without a header are called here."""


INDEX = r"__index_level_\d+__|Unnamed: \d+"
"""The names that pandas gives the index of a data frame, in Parquet and when reading its own
CSV."""


def words_of(name: str) -> list[str]:
    parts = re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+", name)
    return [part.lower() for part in parts]


def is_called(column: ColumnSurvey, words: frozenset[str]) -> bool:
    return not words.isdisjoint([*words_of(column.name), column.name.lower()])


def is_request(column: ColumnSurvey) -> bool:
    """Whether it names what several rows answer: a page that was shown, or a search."""
    return "_".join(words_of(column.name)) in REQUESTS and 1 < column.distinct < 0.5 * column.rows


def named_after(name: str) -> str:
    """The things that are named by a column of ids, or by one of lists of these: `item` of both
    `item_id` and `clicked_items`. Not of users, whose histories are seldom of users."""
    words = [one for one in words_of(name) if one not in OF_IDS]
    return words[-1].removesuffix("s") if words and words[-1] not in USER_WORDS else ""


def names_label(name: str) -> bool:
    """Whether a column is called a label, which texts may be as well as numbers."""
    words = {*words_of(name), name.lower()}
    return not words.isdisjoint(LABEL_WORDS) and words.isdisjoint(NO_LABEL_WORDS)


def is_duration(column: ColumnSurvey) -> bool:
    """Whether its name says how long something took, which is not a time of day."""
    words = words_of(column.name)
    pairs = {"_".join(pair) for pair in itertools.pairwise(words)}
    return not AFTER_TIMES.isdisjoint([*words, *pairs])


def is_index(column: ColumnSurvey, names: Sequence[str]) -> bool:
    """Whether it is the index of a data frame: by its name, or because it has none, in front of
    columns that have names, as pandas writes CSV."""
    if re.fullmatch(INDEX, column.name):
        return True
    first, *others = names
    nameless = column.name == first == f"{UNNAMED}1" and column.seems == "integers"
    return nameless and not any(one.startswith(UNNAMED) for one in others)


def is_split(column: ColumnSurvey) -> bool:
    return "_".join(words_of(column.name)) in SPLITS
