"""TODO"""
from __future__ import annotations
import numpy as np
from packer_cli.plan.strategies.flexsp.iterations import *
from packer_cli.plan.strategies.flexsp.iterations import iteration_seconds
from packer_cli.plan.strategies.flexsp.packing import pack_by_degree
