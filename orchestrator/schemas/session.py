"""A session, as programs see it."""

from pydantic import Field

from soong.orchestrator.schemas.base import Instant, Schema
from soong.shared.core.clock import rfc3339
from soong.shared.engine.sessions.session import ApprovalMode, Session


class SessionSchema(Schema):
    id: str
    principal: str
    project: str
    cwd: str
    approval_mode: ApprovalMode
    created: Instant
    is_owned: bool = Field(description="Whether an orchestrator has adopted it.")
    is_closed: bool

    @classmethod
    def of(cls, session: Session) -> "SessionSchema":
        return cls(
            id=session.id,
            principal=session.principal,
            project=session.project,
            cwd=session.cwd,
            approval_mode=session.approval_mode,
            created=rfc3339(session.created_us),
            is_owned=bool(session.owner_id),
            is_closed=session.is_closed,
        )
