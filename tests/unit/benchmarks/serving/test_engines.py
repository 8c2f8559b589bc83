import os
import stat

import pytest
from peers import engines
from peers.engines import NotInstalledError, convert, is_older, llama_cpp, openvino, vllm
from peers.servers import SERVERS, candidate


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w")
    return folder


@pytest.fixture
def home(tmp_path):
    return tmp_path / "peers"


def put(path, script=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize("key", ["vllm", "openvino", "llama-cpp"])
def test_what_is_not_installed_is_said_in_one_line(home, model, tmp_path, key):
    with pytest.raises(NotInstalledError) as caught:
        candidate(key, home=home, model=model, cache=tmp_path, threads=2)
    assert "\n" not in str(caught.value)
    assert f"is skipped: no {home}" in str(caught.value)
    assert "docs/howto/compare.md" in str(caught.value)


def test_pagoda_needs_no_home(model, tmp_path):
    found = [
        candidate(key, home=None, model=model, cache=tmp_path, threads=2)
        for key in SERVERS
        if key.startswith("pagoda")
    ]
    names = [one.name for one in found]
    assert names == ["Pagoda aggregated", "Pagoda disaggregated", "Pagoda auto"]
    assert all(one.is_pagoda for one in found)


def test_vllm_is_bound_to_as_many_cores_as_it_may_use(home, model, tmp_path):
    put(home / "venv-vllm" / "bin" / "vllm")
    put(home / "venv-vllm" / "lib" / "libiomp5.so")
    put(home / "lib" / "libtcmalloc_minimal.so.4")
    engine = vllm(home, model, tmp_path, 1)
    assert engine.variables["VLLM_CPU_OMP_THREADS_BIND"] == str(min(os.sched_getaffinity(0)))
    assert engine.command[1:3] == ["serve", str(model)]
    assert str(engine.port) in engine.command


def test_openvino_exports_once_and_again_for_newer_weights(home, model, tmp_path):
    put(home / "venv-ov" / "bin" / "python")
    runs = tmp_path / "runs"
    script = (
        f'echo run >> {runs}; for out; do :; done; mkdir "$out"; echo x > "$out"/openvino_model.bin'
    )
    put(home / "venv-ov" / "bin" / "optimum-cli", script)
    for _ in range(2):
        engine = openvino(home, model, tmp_path / "cache", 2)
    assert runs.read_text() == "run\n"
    assert str(tmp_path / "cache" / "model-openvino-fp16") in engine.command
    os.utime(model / "model.safetensors", (4e9, 4e9))
    openvino(home, model, tmp_path / "cache", 2)
    assert runs.read_text() == "run\nrun\n"


def test_llama_cpp_gets_a_connection_for_each_request(home, model, tmp_path):
    put(home / "llama-build" / "bin" / "llama-server")
    put(home / "llama.cpp" / "convert_hf_to_gguf.py")
    put(home / "venv-llama" / "bin" / "python", 'for out; do :; done; echo x > "$out"')
    engine = llama_cpp(home, model, tmp_path, 2)
    assert not engine.keep_alive
    assert not is_older(tmp_path / "model-bf16.gguf", model)


def test_llama_cpp_quantises_what_was_converted(home, model, tmp_path):
    put(home / "llama-build" / "bin" / "llama-server")
    put(home / "llama-build" / "bin" / "llama-quantize", 'echo "$(cat "$1") as $3" > "$2"')
    put(home / "llama.cpp" / "convert_hf_to_gguf.py")
    put(home / "venv-llama" / "bin" / "python", 'for out; do :; done; echo x > "$out"')
    engine = llama_cpp(home, model, tmp_path, 2, "int4")
    weights = tmp_path / "model-Q4_K_M.gguf"
    assert weights.read_text() == "x as Q4_K_M\n"
    assert engine.weights == "Q4_K_M"
    assert str(weights) in engine.command


@pytest.mark.parametrize("key", ["vllm", "openvino"])
def test_who_has_no_such_format_is_skipped(home, model, tmp_path, key):
    with pytest.raises(NotInstalledError, match="is skipped: it is not set up for int8 here"):
        candidate(key, home=home, model=model, cache=tmp_path, threads=2, quantization="int8")


def test_a_converter_that_fails_leaves_nothing_and_says_why(tmp_path):
    script = put(tmp_path / "bad", 'echo half > "$1"; echo out of luck; exit 3')
    with pytest.raises(RuntimeError, match=r"(?s)ended with 3.*out of luck"):
        convert("X", [str(script)], tmp_path / "cache" / "weights")
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_converter_that_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "CONVERT_SECONDS", 1)
    script = put(tmp_path / "slow", "sleep 60")
    with pytest.raises(RuntimeError, match="ended with 124"):
        convert("X", [str(script)], tmp_path / "weights")
