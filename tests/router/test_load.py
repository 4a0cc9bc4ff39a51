"""What is read of the metrics of engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.services import engines
from router.load import read
from router.protocol import EngineLoad

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 4.0
vllm:num_requests_waiting{engine="0",model_name="m"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.5
vllm:cache_config_info{block_size="16",cache_dtype="auto",num_gpu_blocks="1000",engine="0"} 1.0
"""
SGLANG = """\
sglang:num_running_reqs{model_name="m"} 5.0
sglang:num_queue_reqs{model_name="m"} 7.0
sglang:token_usage{model_name="m"} 0.28
sglang:max_total_num_tokens{model_name="m"} 410000.0
"""
LLAMA_CPP = """\
llamacpp:requests_processing 2
llamacpp:requests_deferred 1
"""


@pytest.mark.parametrize(
    ("engine", "text", "told"),
    [
        ("vllm", VLLM, EngineLoad(7, 2, 0.5, 16_000)),
        ("vllm", "vllm:gpu_cache_usage_perc 0.125\n", EngineLoad(cache=0.125)),
        ("sglang", SGLANG, EngineLoad(5, 7, 0.28, 410_000)),
        ("llama-cpp", LLAMA_CPP, EngineLoad(2, 1)),
        ("builtin", 'serve:num_requests_running 1\nserve:num_requests_waiting 0\nx{le="0.1"} 5\n', EngineLoad(1, 0)),
        ("vllm", "vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\n", EngineLoad()),
        ("vllm", "vllm:num_requests_running 1e300\nvllm:kv_cache_usage_perc 7\n", EngineLoad()),
        ("vllm", 'vllm:cache_config_info{num_gpu_blocks="None",block_size="16"} 1\n', EngineLoad()),
    ],
)
def test_the_names_of_each_engine_are_known(engine: str, text: str, told: EngineLoad) -> None:
    assert read(text, engines.signals_of({"engine": engine})) == told


@given(st.text(max_size=500) | st.text(alphabet='vlm:nu_rqestwaig{}="0.9e \n', max_size=500))
def test_any_text_is_read(text: str) -> None:
    told = read(f"vllm:num_requests_running 3\n{text}", engines.signals_of({"engine": "vllm"}))
    assert told.running is None or 0 <= told.running <= 2**53
    assert told.cache is None or 0 <= told.cache <= 1


def test_a_service_without_an_engine_is_not_asked() -> None:
    assert engines.signals_of({"name": "chat"}) == {}
