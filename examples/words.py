"""A plan in Python: split a text, measure its words in parallel, give the longest.

python words.py            soong run words.py --input text="durable task graphs"
"""

from pydantic import BaseModel

from soong import plan, step


class Measured(BaseModel):
    word: str
    letters: int


@step
def split(text: str) -> list[str]:
    return text.split()


@step(retries=2, timeout=30)
async def measure(word: str) -> Measured:
    return Measured(word=word, letters=len(word))


@step
def longest(measured: list[Measured]) -> Measured:
    return max(measured, key=lambda each: each.letters)


@plan
def words(text: str = "one two three") -> Measured:
    """Measure words."""
    return longest(measure.map(split(text)))


if __name__ == "__main__":
    print(words.run(text="durable task graphs"))  # noqa: T201
