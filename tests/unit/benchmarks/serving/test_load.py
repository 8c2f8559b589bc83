import pytest
from driving.load import Load, batch_prompts, drive
from running.models import DEMO_FOLDER
from support.openai_server import openai_server

from pagoda_cli.endpoint import Endpoint

TOKENIZER = DEMO_FOLDER / "tokenizer.json"


@pytest.mark.slow
def test_loads_of_one_seed_share_no_prompt_and_batches_are_what_is_driven():
    loads = [
        Load(concurrency=concurrency, num_requests=4, prompt_tokens=32, output_tokens=2)
        for concurrency in (1, 2)
    ]
    sent = []
    with openai_server() as server:
        endpoint = Endpoint(f"{server.url}/v1", "", "echo")
        for load in loads:
            server.bodies.clear()
            assert drive(endpoint, load, tokenizer=TOKENIZER, seed=1).num_ok == 4
            sent.append([body["prompt"] for body in server.bodies[1:]])  # one warms up
    for load, prompts in zip(loads, sent, strict=True):
        assert sorted(prompts) == sorted(batch_prompts(load, tokenizer=TOKENIZER, seed=1))
    assert not any(prompt in sent[0] for prompt in sent[1])
