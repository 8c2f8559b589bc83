from support.fixtures import *  # noqa: F403
