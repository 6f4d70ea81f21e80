"""The engines that ship with stage-supervisor."""
