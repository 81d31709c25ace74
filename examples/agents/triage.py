"""Two agents of the OpenAI Agents SDK, one of which hands off to the other, as a step."""

from agents import Agent, function_tool
from pydantic import BaseModel

from soong import step


class Ticket(BaseModel):
    """The output of the step."""

    team: str
    number: int


@function_tool
def team_of(path: str) -> str:
    """Return the team that owns a file."""
    return f"core owns {path}"


@function_tool
def file_ticket(title: str) -> int:
    """File a ticket and return its number."""
    return len(title)


filer = Agent(name="filer", instructions="File one ticket.", tools=[file_ticket], output_type=Ticket, model="gpt-5")
triage = Agent(name="triage", instructions="Find the team.", tools=[team_of], handoffs=[filer], model="gpt-5")

sort = step(triage, name="team.triage", readonly=["team_of"])
