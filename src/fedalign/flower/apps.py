"""The ServerApp and the ClientApp that Flower runs. Heavy imports wait until a message arrives."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

if TYPE_CHECKING:
    from flwr.serverapp import Grid

UNBOUND = (
    "this SuperNode was started without config= in --node-config, so it reads and sends whatever the server's "
    "configuration asks for; add config= with the file that you checked with fedalign check --what-leaves"
)

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    from fedalign.errors import UserError
    from fedalign.flower.server import in_flower, serve

    logger = logging.getLogger("flwr")  # which Flower shows with `flwr run --stream` and `flwr log`
    logger.addFilter(_without_trace)
    log = logger.info
    if not context.run_config.get("packed"):  # started with flwr run, not by fedalign server
        log(f"this run continues if --stream ends; stop it with: flwr stop {context.run_id} parties")
    try:
        result = serve(grid, str(context.run_config["config"]), context.run_config, log)
    except UserError as error:
        sentence = in_flower(str(error))
        logger.error("error: %s", sentence)
        raise UserError(sentence) from None  # Flower marks a run as failed if its app raises
    if "last" in result:
        found, (counted, parties) = result["last"], result["scored_by"]
        scores = f"F1 {100 * found['f1']:.2f}, accuracy {100 * found['accuracy']:.2f}"
        log(f"finished: {scores}, counted by {counted} of {parties} parties")
    log(f"run folder: {context.run_config.get('out', 'run')}")


def _without_trace(record: logging.LogRecord) -> bool:
    """Removes the traceback that Flower logs with a user's mistake."""
    from fedalign.errors import UserError

    if record.exc_info and isinstance(record.exc_info[1], UserError):
        record.exc_info = None
    return True


def _answer(kind: str, message: Message, context: Context) -> Message:
    """Returns the party's reply. The reason of a failure stays in the party's own log: it may hold a path or a cell."""
    from flwr.app import ConfigRecord, RecordDict

    from fedalign.flower.packing import is_packed, pack

    try:
        from fedalign.flower.packing import unpack
        from fedalign.flower.party import answer

        reply = answer(kind, unpack(message.content), str(context.run_config["config"]), dict(context.node_config))
    except Exception as error:
        from fedalign.errors import UserError

        mistake = isinstance(error, UserError)
        logging.getLogger("flwr").error("error: %s", error, exc_info=None if mistake else error)
        reason = f"{'it could not answer' if mistake else 'it failed'} ({kind}); its own log says why"
        reply = RecordDict({"failure": ConfigRecord({"reason": reason})})
    return Message(pack(reply) if is_packed(message.content) else reply, reply_to=message)


@client_app.query("offer")
def offer(message: Message, context: Context) -> Message:
    if "data" in context.node_config and "config" not in context.node_config:
        logging.getLogger("flwr").warning(UNBOUND)
    return _answer("offer", message, context)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    return _answer("train", message, context)


@client_app.query("score")
def score(message: Message, context: Context) -> Message:
    return _answer("score", message, context)
