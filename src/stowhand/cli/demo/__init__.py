"""``stowhand demo``: the main job on real input. Every file of a folder is described by a job; one worker is killed."""
