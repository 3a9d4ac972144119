"""A stock Debian kernel, booted by QEMU: a small experiment over circuits that it switches (`kernel_datapath.py`)."""

PARTS = ("circuits",)


def test_an_experiment_runs_over_circuits_that_the_kernel_switches(found: dict) -> None:
    run = found["circuits"]
    assert run["failure"] in (None, "")
    assert (run["completed"], run["fidelity"]["datapath"]) == (run["offered"], "system")
    assert run["switched"] >= 2
    errors = {m["name"]: m["emulated"] for m in run["fidelity"]["measures"] if m["name"].startswith("goodput error")}
    assert errors
    assert max(errors.values()) < 0.2, errors
    assert run["goodput_bps"] <= 50e6
    # Packets that cross in the dark, or a circuit that is live too early, would be our fault and not the machine's.
    assert not [reason for reason in run["fidelity"]["reasons"] if "dark" in reason], run["fidelity"]["reasons"]
