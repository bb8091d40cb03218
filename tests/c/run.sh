#!/usr/bin/env bash
# Runs the test of the C interface in a folder of its own.
#   tests/c/run.sh PROGRAM
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" tests/data/chat "$work"
