"""A task as the command line sees it: what its stream tells of the rows of a store."""

import json

from soong.orchestrator.approvals.approval import question_of
from soong.orchestrator.cli.display import TaskView
from soong.orchestrator.operations.progress import TaskWatch
from soong.orchestrator.schemas.approval import ApprovalSchema
from soong.shared.storage.store import Store


async def view_of(store: Store, task_id: str) -> TaskView:
    """Return the first view of a task, with the questions that wait."""
    watch, view = TaskWatch(task_id, store), TaskView(task_id)
    await watch.look()
    event = json.loads(watch.since(0).partition(b"data: ")[2])
    view.take(task_id, event, is_whole=True)
    questions = [await question_of(store.consent, one) for one in event["approvals"]]
    view.questions = [ApprovalSchema.of_question(one).model_dump(mode="json") for one in questions]
    return view
