"""Command tools that a user declares in ``${SOONG_AGENT_HOME}/tools/*.json`` (CMD-02..06, REG-07)."""
