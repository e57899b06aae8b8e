"""normscope from a shell: `python run.py --help`."""

import hydra
from omegaconf import DictConfig

from normscope import cli as cli


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> object:
    """Run one job."""
    return cli.job(config)


if __name__ == "__main__":
    cli.run(main)
