import pytest
import torch

from cluster.checkpoints import load_model, resolve
from cluster.checkpoints.tiny import build_tiny
from cluster.drafting.features import FeaturesInfo, LayerTaps, default_layer_ids
from cluster.drafting.wire import MAX_FEATURES_BYTES, feature_rows, take_features


def test_layers_are_spread_as_published():
    assert default_layer_ids(36, 5) == (1, 9, 17, 25, 33)
    assert default_layer_ids(36, 1) == (18,)
    assert default_layer_ids(30, 3) == (1, 14, 27)


def test_layer_id_is_hidden_state_of_the_next_index(tmp_path):
    # Index 0 is the embedding: whoever reads hidden_states[id] reads one layer too early.
    model = load_model(resolve(str(build_tiny(tmp_path / "tiny", seed=1, layers=4))), "float32", "cpu")
    taps = LayerTaps(model, (0, 2, 3))
    output = model(torch.tensor([[1, 2, 3, 4]]), output_hidden_states=True)
    expected = torch.cat([output.hidden_states[index] for index in (1, 3, 4)], dim=-1)
    assert torch.equal(taps.take(), expected)
    early = torch.cat([output.hidden_states[index] for index in (0, 2, 3)], dim=-1)
    assert not torch.allclose(taps.take(), early, atol=1e-3)
    taps.close()
    model(torch.tensor([[5, 6]]))
    assert torch.equal(taps.take(), expected)


@pytest.mark.parametrize("ids", [(), (4,), (-1,)])
def test_layers_that_the_model_lacks_are_refused(tmp_path, ids):
    model = load_model(resolve(str(build_tiny(tmp_path / "tiny", seed=1, layers=4))), "float32", "cpu")
    with pytest.raises(ValueError, match="the target has 4"):
        LayerTaps(model, ids)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rows_cross_the_wire_bit_for_bit(dtype):
    info = FeaturesInfo((1,), "", dtype, 24)
    rows = torch.randn(5, 24).to(getattr(torch, dtype))
    sent = feature_rows(rows)
    assert len(sent) == 5 * 24 * rows.element_size()
    assert torch.equal(take_features(sent, info), rows)


@pytest.mark.parametrize("size", [0, 95, 97, MAX_FEATURES_BYTES + 96])
def test_bytes_that_are_no_rows_are_refused(size):
    with pytest.raises(ValueError, match="a row has 96"):
        take_features(b"\0" * size, FeaturesInfo((1,), "", "float32", 24))
