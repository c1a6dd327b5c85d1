# Claude Code, over /v1/messages: its answer is the last line. $1 is the folder of its executable.
set -eu
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
"$1/claude" --model policy --allowedTools Bash -p "What is 2 + 3?"
