import pagoda_engine as engine


def test_exports_are_sorted_and_there() -> None:
    assert engine.__all__ == sorted(engine.__all__)
    assert all(hasattr(engine, name) for name in engine.__all__)
