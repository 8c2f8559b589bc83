import json

import pytest
import torch

from pagoda_kernels import tuning
from pagoda_kernels.tuning import TileTable, attention_shape, gpu_key, tuned

CUDA = torch.device("cuda", 0)
TILES = {"attention_decode": {"head_dim 128, 16 bit": {"BLOCK_N": 128, "num_stages": 3}}}


@pytest.fixture
def on_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    monkeypatch.setattr(tuning, "TUNING_FOLDER", tmp_path)
    tuning.table_of.cache_clear()
    yield tmp_path / "h200.json"
    tuning.table_of.cache_clear()


def look_up(head_dim=128, device=CUDA):
    shape = attention_shape(head_dim, 2)
    return tuned("attention_decode", shape, device, num_stages=5, BLOCK_N=64)


def test_without_a_file_the_default_holds(on_gpu):
    assert look_up() == (5, 64)


def test_a_measured_tile_replaces_the_default_of_its_shape_only(on_gpu):
    on_gpu.write_text(json.dumps({"tiles": TILES}), encoding="utf-8")
    assert look_up() == (3, 128)
    assert look_up(head_dim=64) == (5, 64)


def test_cpu_and_interpreter_use_the_default(on_gpu):
    on_gpu.write_text(json.dumps({"tiles": TILES}), encoding="utf-8")
    assert look_up(device=torch.device("cpu")) == (5, 64)


def test_the_file_is_read_once(on_gpu):
    look_up()
    on_gpu.write_text(json.dumps({"tiles": TILES}), encoding="utf-8")
    assert look_up() == (5, 64)


def test_an_entry_for_another_kernel_is_refused(on_gpu):
    tiles = {"attention_decode": {"head_dim 128, 16 bit": {"BLOCK_M": 128}}}
    on_gpu.write_text(json.dumps({"tiles": tiles}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"expected \['BLOCK_N', 'num_stages'\], got \['BLOCK_M'"):
        look_up()


@pytest.mark.parametrize("tiles", [None, [], {"op": 3}, {"op": {"shape": {"BLOCK_N": "64"}}}])
def test_a_file_that_is_no_table_is_refused(on_gpu, tiles):
    on_gpu.write_text(json.dumps({"tiles": tiles}), encoding="utf-8")
    with pytest.raises(ValueError, match=r"h200.json: expected tiles as op -> shape"):
        look_up()


def test_a_table_survives_its_file(tmp_path):
    table = TileTable("h200", {})
    table.replace("attention_decode", "a", {"BLOCK_N": 32})
    table.replace("attention_decode", "b", {"BLOCK_N": 64})
    table.replace("attention_decode", "b", None)
    table.write(tmp_path / "h200.json", {"date": "2026-01-01"})
    again = TileTable.read(tmp_path / "h200.json", "h200")
    assert again.lookup("attention_decode", "a", {"BLOCK_N": 1}) == {"BLOCK_N": 32}
    assert again.lookup("attention_decode", "b", {"BLOCK_N": 1}) == {"BLOCK_N": 1}


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
    ],
)
def test_a_gpu_is_known_by_its_family(name, key):
    assert gpu_key(name) == key


@pytest.mark.parametrize("gpu", ["a100", "h100", "h200", "l4"])
def test_shipped_files_are_tables(gpu):
    path = tuning.tuning_file(gpu)
    assert path.exists()
    assert TileTable.read(path, gpu).gpu == json.loads(path.read_text(encoding="utf-8"))["gpu"]
