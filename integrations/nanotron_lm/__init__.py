"""conceptloader for nanotron.

With nanotron main and its run_train.py, started by conceptloader.launch, or with two lines at the top of a script:

    from conceptloader.integrations import nanotron_lm
    nanotron_lm.install()

a data stage may say `dataset: {type: conceptloader, ...}`. With any other version, build_dataloader() makes the loader
for a custom script. See docs/nanotron.md.

Open own_script.py first: the loader without the launcher.
"""

from conceptloader.base.packages import public

__all__, __getattr__ = public(__name__, {"launch": "install set_weights", "own_script": "build_dataloader save_state"})
