import stat
from pathlib import Path

import pytest

from pagoda_cli.up.errors import HomeInUseError, SecretsError
from pagoda_cli.up.home import load_secrets, lock_home, write_environment
from pagoda_runtime.errors import StartError


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_stay_the_same_and_private(tmp_path: Path) -> None:
    first, again = load_secrets(tmp_path), load_secrets(tmp_path)

    assert first == again
    assert mode_of(tmp_path / "secrets.json") == 0o600


def test_secrets_differ_between_homes(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()

    assert load_secrets(tmp_path).api_key != load_secrets(tmp_path / "a").api_key


def test_a_missing_secret_is_drawn(tmp_path: Path) -> None:
    (tmp_path / "secrets.json").write_text('{"api_key": "mine"}')

    drawn = load_secrets(tmp_path)

    assert drawn.api_key == "mine"
    assert load_secrets(tmp_path).nats_passwords == drawn.nats_passwords
    assert len(set(drawn.nats_passwords.values())) == 6


@pytest.mark.parametrize(
    "text", ["{", "[]", "\xff", '{"nats_passwords": []}', '{"api_key": 5}', '{"x": {}}']
)
def test_damaged_secrets_are_said_and_kept(text: str, tmp_path: Path) -> None:
    path = tmp_path / "secrets.json"
    path.write_bytes(text.encode("latin-1"))

    with pytest.raises(SecretsError, match=r"secrets.json is damaged .* delete it"):
        load_secrets(tmp_path)
    assert path.read_bytes() == text.encode("latin-1")


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_a_home_that_cannot_be_made_names_its_setting(home: str) -> None:
    with pytest.raises(StartError, match=rf"cannot use the folder {home} .*set PAGODA_HOME"):
        lock_home(Path(home))


def test_files_that_cannot_be_used_are_named_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        StartError, match=r"cannot write .*secrets.json \(.*set another PAGODA_HOME"
    ):
        load_secrets(tmp_path / "nowhere")
    with pytest.raises(StartError, match=r"cannot write .*/env \("):
        write_environment(tmp_path / "nowhere" / "env", {})


def test_a_home_is_used_once(tmp_path: Path) -> None:
    with lock_home(tmp_path), pytest.raises(HomeInUseError, match="PAGODA_HOME"):
        lock_home(tmp_path)
    lock_home(tmp_path).close()


def test_what_earlier_starts_left_open_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    own = ["ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm"]
    for name in (*own, "notes"):
        (tmp_path / name).touch(0o644)
    for name in ("outbox", "kvstore-2"):
        (tmp_path / name).mkdir(0o755)
    lock_home(tmp_path).close()

    assert {mode_of(tmp_path / name) for name in own} == {0o600}
    assert {mode_of(tmp_path / name) for name in ("outbox", "kvstore-2", "logs")} == {0o700}
    assert (mode_of(tmp_path), mode_of(tmp_path / "notes")) == (0o755, 0o644)


def test_the_environment_file_can_be_sourced(tmp_path: Path) -> None:
    write_environment(tmp_path / "env", {"A": "http://x/v1", "B": "two words"})

    assert (tmp_path / "env").read_text() == "A=http://x/v1\nB='two words'\n"
    assert mode_of(tmp_path / "env") == 0o600


def test_a_path_that_the_locale_cannot_read_is_written_as_it_is(tmp_path: Path) -> None:
    path = "/home/jos\udcc3\udca9"  # in the locale POSIX
    write_environment(tmp_path / "env", {"PAGODA_TRACE_DIR": path})
    assert (tmp_path / "env").read_bytes() == "PAGODA_TRACE_DIR='/home/josé'\n".encode()
