# Codex, over /v1/responses: its last message is the last line. $1 is the folder of its executable.
# Commands run without Codex's sandbox, because they are those of the scripted player alone.
set -eu
export CODEX_HOME="$HOME/codex"
mkdir "$CODEX_HOME"
cat > "$CODEX_HOME/config.toml" <<END
model = "policy"
model_provider = "gateway"
check_for_update_on_startup = false
analytics.enabled = false
[model_providers.gateway]
name = "gateway"
base_url = "$OPENAI_BASE_URL"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
END
"$1/codex" exec --skip-git-repo-check --sandbox danger-full-access "What is 2 + 3?"
