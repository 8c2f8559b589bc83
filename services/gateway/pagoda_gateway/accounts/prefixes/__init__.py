"""Why a prompt's expected prefix was not cached: prompts remembered, compared, explained."""
