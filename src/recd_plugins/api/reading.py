"""The parts of a reader of another kind: order, local reader, and what other processes need.

The batches themselves are in `batch`, which needs torch.
"""

from recd_plugins.config import parse
from recd_plugins.data.reader.local_reader import LocalReader, LocalReaderConfig, table_digest
from recd_plugins.data.reader.order import Order, SessionOrder, Shares, Tail
from recd_plugins.data.stripes import DamagedStripe
from recd_plugins.launch.environment import die_with_parent
from recd_plugins.launch.fork_server import fork_server
from recd_plugins.notices import notices_as_lines
from recd_plugins.registry.delivery import Delivery, OpenDelivery

__all__ = [
    "DamagedStripe",
    "Delivery",
    "LocalReader",
    "LocalReaderConfig",
    "OpenDelivery",
    "Order",
    "SessionOrder",
    "Shares",
    "Tail",
    "die_with_parent",
    "fork_server",
    "notices_as_lines",
    "parse",
    "table_digest",
]
