"""`axolotl train CONFIG` on processes without GPUs: it would place the model on a GPU as soon as there are several."""

import sys

import axolotl.cli.config
from axolotl.cli.train import do_cli

normalize = axolotl.cli.config.normalize_config


def normalize_config(config):
    normalize(config)
    config.device_map = {"": "cpu"}


axolotl.cli.config.normalize_config = normalize_config
do_cli(sys.argv[1])
