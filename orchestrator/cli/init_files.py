"""The files that ``soong init`` writes: a plan, what does its work without a model, an agent, a configuration."""

from typing import Final

PLAN: Final = """\
# A plan: steps, and what each waits for. All fields: soong help tasks validate, docs/plans.md
#
#   soong tasks validate plan.yaml
#   soong run plan.yaml
#   soong run plan.yaml --model anthropic:NAME      # a model does the work, not steps.py
title: Count the words of a project
modules: [steps]                       # steps.py, next to this file

inputs:
  glob:
    default: "*.md"
    description: files to read

steps:
  - id: find
    title: Find the files
    agent: project.reader              # .soong/agents/reader.md
    allowed_tools: [code.search]       # exactly these tools, and no others
    instructions: Search with code.search for files that match ${inputs.glob}, and answer with their paths, at most 20.
    inputs: {glob: "${inputs.glob}"}
    output:                            # the form of the answer, as a JSON Schema
      type: object
      required: [files]
      properties:
        files: {type: array, items: {type: string}}
    script: steps.find                 # what runs when no model is given

  - id: read
    kind: map                          # one step for each file, in parallel
    depends_on: [find]
    over: ${find.output.files}
    as: file
    step:
      title: Read ${file}
      agent: project.reader
      allowed_tools: [code.read_file]
      instructions: Read ${file} with code.read_file, and answer with its path and its number of words.
      inputs: {file: "${file}"}
      output:
        type: object
        required: [file, words]
        properties:
          file: {type: string}
          words: {type: integer}
      script: steps.read

  - id: total
    title: Add them up
    kind: python                       # a function, no agent
    call: steps.total
    depends_on: [read]
    inputs: {counted: "${read.output}"}

  # A step that writes asks you first. Remove the marks to see it.
  # - id: write
  #   depends_on: [total]
  #   allowed_tools: [code.write_file]
  #   instructions: Write the result to words.json.
  #   inputs: {result: "${total.output}"}
  #   script: steps.write
"""

STEPS: Final = '''\
"""What the steps of plan.yaml do: scripted agents, for when no model is chosen, and a step function."""

import json

from soong import AgentHandle, JsonObject, StepContext, scripted_agent, step_function


@scripted_agent("steps.find")
async def find(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    found = await agent.call("code.search", query=".", glob=inputs["glob"])
    return {"files": sorted({match["path"] for match in found["matches"]})[:20]}


@scripted_agent("steps.read")
async def read(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    text = await agent.call("code.read_file", path=inputs["file"])
    return {"file": inputs["file"], "words": len(text["text"].split())}


@scripted_agent("steps.write")
async def write(inputs: JsonObject, agent: AgentHandle) -> JsonObject:
    await agent.call("code.write_file", path="words.json", content=json.dumps(inputs["result"]) + "\\n")
    return inputs


@step_function("steps.total")
def total(inputs: JsonObject, context: StepContext) -> JsonObject:
    return {"files": len(inputs["counted"]), "words": sum(each["words"] for each in inputs["counted"])}
'''

AGENT: Final = """\
---
description: Reads files and reports facts about them. Plans name it `project.reader`.
mode: readonly                           # no tool that changes anything
# suggested_tools: [code.read_file, code.list_dir, code.search]   # for steps without allowed_tools
# model: anthropic:claude-sonnet-5-5     # your config.toml must allow it: [agents] project_models
# limits: {max_turns: 30}
---
You read files of a project and report facts about them. Say nothing that you have not read. Do not guess.
"""

CONFIG: Final = """\
# Your configuration: what agents may do, wherever they run. A project cannot change it. See docs/permissions.md

[permission]
mode = "auto"                  # or "strict": every call that does more than read asks

# [[permission.rules]]         # deny beats ask beats allow
# effect = "allow"
# tools = "code.write_file"
# scope = "/work/out"          # an allow rule needs a scope

# [tools]
# dangerous = true             # code.run_command; each call still asks

# [agents]
# project_models = ["anthropic:*"]     # models that agents of a project may choose

# [notifications.desktop.screen]       # also webhook, email, ntfy, slack: docs/notifications.md

# [[notifications.rules]]
# channel = "screen"
# events = ["question", "failure", "end"]
"""
