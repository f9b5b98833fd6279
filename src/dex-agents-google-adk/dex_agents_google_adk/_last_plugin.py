"""The plugin behind the application's own.

It puts off a call that nobody answered, through ADK's own tool confirmation, and has a useless
answer of the model asked for again.
"""

from __future__ import annotations

import copy
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.agents.llm_agent import LlmAgent
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.agent_tool import AgentTool
from google.adk.tools.base_tool import BaseTool
from google.adk.tools.tool_context import ToolContext

from dex_agents._effects import ToolEffect
from dex_agents._errors import AgentTurnError, ToolExecutionError
from dex_agents_google_adk._adk_compat import (
    INPUT_CALL,
    first_answer,
    first_content,
    invocation_of,
    is_unknown_tool,
    mark_empty_answer,
    node_behind,
)
from dex_agents_google_adk._attempt import Attempt
from dex_agents_google_adk._effects import (
    PolicyResolver,
    is_control_tool,
)
from dex_agents_google_adk._faults import fault_of
from dex_agents_google_adk._images import ImageLoader
from dex_agents_google_adk._json import to_json
from dex_agents_google_adk._open_response import DeferredCall, OpenResponse
from dex_agents_google_adk._pauses import agent_key, put_off, yield_answer
from dex_agents_google_adk._questions import question_of
from dex_agents_google_adk._source_tools import OfferedTool, SourceTools

LAST_PLUGIN_NAME = "dex_agents_last"


class LastPlugin(BasePlugin):
    """Runs after every plugin of the application."""

    def __init__(
        self,
        attempt: Attempt,
        resolver: PolicyResolver,
        images: ImageLoader,
        sources: SourceTools,
    ) -> None:
        super().__init__(LAST_PLUGIN_NAME)
        self._sources = sources
        self._images = images
        self._attempt = attempt
        self._resolver = resolver

    async def before_model_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest
    ) -> LlmResponse | None:
        await self._images.fill(llm_request, self._attempt.image_uris)
        feedback = self._attempt.faults.feedback(agent_key(callback_context))
        if feedback is not None:
            llm_request.contents.append(feedback)
        return None

    async def after_model_callback(
        self, *, callback_context: CallbackContext, llm_response: LlmResponse
    ) -> LlmResponse | None:
        if llm_response.partial:
            return None
        key = agent_key(callback_context)
        checked = llm_response.model_copy()  # callbacks do not see ADK's own mark
        mark_empty_answer(callback_context, checked)
        fault = fault_of(checked, has_answered=self._attempt.model_calls.has_answered(key))
        if not fault:
            self._attempt.faults.forget(key)
            return None
        agent = invocation_of(callback_context).agent
        if isinstance(agent, LlmAgent):
            # The agent's own chain runs here, as ADK runs none behind a plugin's answer.
            changed = await first_content(
                agent.canonical_after_model_callbacks,
                callback_context=callback_context,
                llm_response=llm_response,
            )
            if changed is not None:
                return changed  # type: ignore[no-any-return]
        self._attempt.faults.note(key, fault)
        return yield_answer(
            self._attempt, callback_context, self._attempt.model_calls.tools_of(key)
        )

    async def on_model_error_callback(
        self, *, callback_context: CallbackContext, llm_request: LlmRequest, error: Exception
    ) -> LlmResponse | None:
        self._attempt.model_errors.append(error)
        return None

    async def before_tool_callback(
        self, *, tool: BaseTool, tool_args: dict[str, Any], tool_context: ToolContext
    ) -> Any:
        if is_unknown_tool(tool) or is_control_tool(tool):
            return None
        agent = invocation_of(tool_context).agent
        response = self._attempt.open_response(agent_key(tool_context))
        if not isinstance(agent, LlmAgent):
            return None
        if response is None:
            # Never let ADK run what no Step would run.
            raise AgentTurnError(
                f"tool {tool.name!r} of agent {agent.name!r} was called in no response that the "
                f"session knows of; it did not run"
            )
        try:
            return await self._answer_or_put_off(agent, response, tool, tool_args, tool_context)
        except Exception as error:
            # ADK wraps what a plugin raises, but not what an agent's own callback raises.
            self._attempt.callback_errors.append(error)
            raise

    async def _answer_or_put_off(
        self,
        agent: LlmAgent,
        response: OpenResponse,
        tool: BaseTool,
        tool_args: dict[str, Any],
        tool_context: ToolContext,
    ) -> Any:
        # The agent's own chain runs here and not in ADK, which would run it behind the placeholder.
        before = copy.deepcopy(tool_args)
        answer = await first_answer(
            agent.canonical_before_tool_callbacks,
            tool=tool,
            args=tool_args,
            tool_context=tool_context,
        )
        if answer is not None:
            return answer
        if isinstance(tool, OfferedTool):
            if tool.is_withdrawn:
                return tool.refusal
            try:
                call = self._sources.put_off(tool, to_json(tool_args))
            except ToolExecutionError as error:
                return {"error": f"The tool call failed: {error}"}
            call.arguments, call.arguments_changed = to_json(tool_args), before != tool_args
            self._attempt.agent_pauses(agent_key(tool_context))
            return put_off(response, tool_context, call)
        if tool.name == INPUT_CALL:
            return await self._ask(response, tool, tool_args, tool_context, before)
        policy = self._resolver.resolve(tool)
        if policy.effect is ToolEffect.READ:
            await self._check_read(tool, tool_context)
        asks = await tool.check_require_confirmation(copy.deepcopy(tool_args), tool_context)
        self._attempt.agent_pauses(agent_key(tool_context))
        return put_off(
            response,
            tool_context,
            DeferredCall(
                tool_name=tool.name,
                native=False,
                arguments=to_json(tool_args),
                arguments_changed=before != tool_args,
                effect=policy.effect,
                requires_approval=policy.requires_approval or asks is True,
            ),
        )

    async def _ask(
        self,
        response: OpenResponse,
        tool: BaseTool,
        tool_args: dict[str, Any],
        tool_context: ToolContext,
        before: dict[str, Any],
    ) -> Any:
        # ADK's tool does nothing but to say what is wrong with its arguments.
        refused = await tool.run_async(args=copy.deepcopy(tool_args), tool_context=tool_context)
        if refused is not None:
            return refused
        self._attempt.agent_pauses(agent_key(tool_context))
        arguments = to_json(tool_args)
        call = DeferredCall(
            tool_name=tool.name,
            native=False,
            arguments=arguments,
            arguments_changed=before != tool_args,
            effect=ToolEffect.READ,
            interrupt=question_of(arguments),
        )
        return put_off(response, tool_context, call)

    async def _check_read(self, tool: BaseTool, context: ToolContext) -> None:
        behind = node_behind(tool)
        if behind is None:
            return
        if writing := await self._resolver.writing_tool_of(behind, context):
            kind = "agent tool" if isinstance(tool, AgentTool) else "node tool"
            raise AgentTurnError(
                f"the {kind} {tool.name!r} has the effect read, but its agent has the tool "
                f"{writing!r}, which is not read: a repeated Step would repeat its writes. Give "
                f"{tool.name!r} a write effect in tool_policies."
            )
