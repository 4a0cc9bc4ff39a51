"""Where the control plane is: precedence, and a token that never goes to an address it was not meant for."""

from __future__ import annotations

from pathlib import Path

import pytest

from switchyard.address import ConfigError, config_path, find
from switchyard.cli.login import write
from switchyard.problem import Unreachable


@pytest.fixture
def own(no_config: Path) -> Path:
    """The user's own configuration file, for a test to write."""
    path = config_path()
    path.parent.mkdir(parents=True)
    return path


def local_stack(url: str = "http://local", token: str = "t-local") -> None:
    path = Path.home() / ".switchyard" / "client.toml"
    path.parent.mkdir()
    path.write_text(f'url = "{url}"\ntoken = "{token}"\n')


def found(*args: str | None, **more: str) -> tuple[str, str]:
    address = find(*args, **more)
    return address.url, address.token


def test_without_anything_it_says_what_to_do():
    with pytest.raises(Unreachable, match="yard login"):
        find()


def test_the_order_is_argument_environment_folder_file_local_stack(no_config, own, monkeypatch):
    local_stack()
    assert found() == ("http://local", "t-local")
    own.write_text('url = "http://own"\ntoken = "t-own"\n')
    assert found() == ("http://own", "t-own")
    (no_config / ".yard.toml").write_text('url = "http://folder"\ntoken = "t-folder"\n')
    assert found() == ("http://folder", "t-folder")
    monkeypatch.setenv("YARD_URL", "http://env")
    monkeypatch.setenv("YARD_TOKEN", "t-env")
    assert found() == ("http://env", "t-env")
    assert found("http://arg", "t-arg") == ("http://arg", "t-arg")


def test_a_url_from_a_folder_is_never_shown_a_token_of_another_address(no_config, own):
    own.write_text('url = "http://own"\ntoken = "t-own"\n')
    local_stack()
    (no_config / ".yard.toml").write_text('url = "http://stranger"\n')
    assert found() == ("http://stranger", "")


def test_a_token_in_the_environment_alone_does_not_go_where_a_folder_points(no_config, monkeypatch):
    (no_config / ".yard.toml").write_text('url = "http://stranger"\n')
    monkeypatch.setenv("YARD_TOKEN", "t-env")
    with pytest.raises(ConfigError, match="YARD_URL"):
        find()


def test_a_folder_may_name_an_address_whose_token_the_user_keeps(no_config, own):
    own.write_text('url = "http://team/"\ntoken = "t-own"\n')
    (no_config / ".yard.toml").write_text('url = "http://team"\nproject = "vision"\n')
    address = find()
    assert (address.url, address.token, address.project) == ("http://team", "t-own", "vision")


def test_a_given_address_finds_its_own_token(own):
    own.write_text('url = "http://own"\ntoken = "t-own"\n')
    assert found("http://own") == ("http://own", "t-own")
    assert found("http://other") == ("http://other", "")


def test_a_profile_is_chosen_by_name_and_missing_ones_are_told(own):
    own.write_text('url = "http://own"\ntoken = "a"\n[profiles.lab]\nurl = "http://lab"\ntoken = "b"\n')
    assert found(profile="lab") == ("http://lab", "b")
    with pytest.raises(ConfigError, match="nowhere"):
        find(profile="nowhere")


def test_a_broken_file_is_named(own):
    own.write_text("url = ")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        find()


def test_what_login_writes_is_read_back_and_only_the_owner_may_read_it(own):
    write(own, "http://a", 'to"ken\\', "", "vision")
    write(own, "http://lab", "b", "lab", "")
    write(own, "http://c", "c", "", "")
    assert found() == ("http://c", "c")
    assert found(profile="lab") == ("http://lab", "b")
    assert own.stat().st_mode & 0o777 == 0o600
    assert list(own.parent.iterdir()) == [own]
