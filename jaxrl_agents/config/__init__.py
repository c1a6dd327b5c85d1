"""Run configuration: frozen dataclasses, built by `configs/*.py:get_config()`, overridden by
`a.b=c`.

An option that does not exist, or that nothing would read, is an error that names the nearest one.
"""

from jaxrl_agents.config.cache import cache_folder as cache_folder
from jaxrl_agents.config.checks import validate as validate
from jaxrl_agents.config.description import described as described
from jaxrl_agents.config.description import options_text as options_text
from jaxrl_agents.config.judge import JudgeConfig as JudgeConfig
from jaxrl_agents.config.loading import changed as changed
from jaxrl_agents.config.loading import load as load
from jaxrl_agents.config.loading import options as options
from jaxrl_agents.config.loading import sha256 as sha256
from jaxrl_agents.config.loading import with_overrides as with_overrides
from jaxrl_agents.config.mcp_servers import McpServer as McpServer
from jaxrl_agents.config.sections import BASE_MODEL as BASE_MODEL
from jaxrl_agents.config.sections import SFT_SOURCES as SFT_SOURCES
from jaxrl_agents.config.sections import CorpusConfig as CorpusConfig
from jaxrl_agents.config.sections import EvalConfig as EvalConfig
from jaxrl_agents.config.sections import EvaluatorConfig as EvaluatorConfig
from jaxrl_agents.config.sections import FleetConfig as FleetConfig
from jaxrl_agents.config.sections import LearnerConfig as LearnerConfig
from jaxrl_agents.config.sections import LoraConfig as LoraConfig
from jaxrl_agents.config.sections import MeshConfig as MeshConfig
from jaxrl_agents.config.sections import MonitorConfig as MonitorConfig
from jaxrl_agents.config.sections import Optimizer as Optimizer
from jaxrl_agents.config.sections import PolicySection as PolicySection
from jaxrl_agents.config.sections import PublishConfig as PublishConfig
from jaxrl_agents.config.sections import RunConfig as RunConfig
from jaxrl_agents.config.sections import SamplerConfig as SamplerConfig
from jaxrl_agents.config.sections import SftConfig as SftConfig
from jaxrl_agents.config.sections import ToggleConfig as ToggleConfig
from jaxrl_agents.config.sections import ToolsConfig as ToolsConfig
from jaxrl_agents.config.sections import WorkersConfig as WorkersConfig
