"""Pipelines of transformers: inputs, outputs and results of each task. The models are tiny and random."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install '.[transformers]'")

from PIL import Image  # noqa: E402
from tiny_pipelines import bert_pipeline, gpt_pipeline, tokenizer  # noqa: E402

from pytriton.adapters import transformers_model  # noqa: E402
from pytriton.exceptions import PyTritonBadParameterError  # noqa: E402
from pytriton.model_config import ModelConfig, Tensor  # noqa: E402

TEXTS = ["good", "very bad text", "this is a text"]
TEXT = Tensor((1,), bytes, "text")
SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}


def served(definition, values, name="text"):
    array = np.array([[value.encode() if isinstance(value, str) else value] for value in values], object)
    return definition.infer_func([{name: array}])[0]


def png(color):
    file = io.BytesIO()
    Image.new("RGB", (40, 20), color).save(file, "PNG")
    return file.getvalue()


def test_text_classification_returns_the_best_label():
    pipeline = bert_pipeline("text-classification")

    definition = transformers_model(pipeline, max_batch_size=16)

    assert definition.inputs == [TEXT]
    assert definition.outputs == [Tensor((1,), bytes, "label"), Tensor((1,), np.float32, "score")]
    assert definition.config == ModelConfig(max_batch_size=16)
    response = served(definition, TEXTS)
    expected = [pipeline(text)[0] for text in TEXTS]
    assert response["label"].ravel().tolist() == [each["label"] for each in expected]
    assert response["score"].ravel() == pytest.approx([each["score"] for each in expected], abs=1e-5)


def test_arguments_go_to_each_call():
    definition = transformers_model(bert_pipeline("text-classification"), top_k=2)

    assert [tensor.shape for tensor in definition.outputs] == [(2,), (2,)]
    assert served(definition, TEXTS)["score"].shape == (3, 2)


@pytest.mark.parametrize("texts", [TEXTS[:1], TEXTS])
def test_zero_shot_classification_returns_all_labels(texts):
    pipeline = bert_pipeline("zero-shot-classification")

    definition = transformers_model(pipeline, candidate_labels=["a", "b"])

    response = served(definition, texts)
    assert definition.outputs == [Tensor((2,), bytes, "label"), Tensor((2,), np.float32, "score")]
    assert [sorted(row) for row in response["label"].tolist()] == [["a", "b"]] * len(texts)
    assert response["score"].sum(axis=1) == pytest.approx([1] * len(texts))


@pytest.mark.parametrize("texts", [["good [MASK]"], ["good [MASK]", "[MASK] very bad"]])
def test_fill_mask_returns_the_best_words(texts):
    pipeline = bert_pipeline("fill-mask")

    response = served(transformers_model(pipeline, top_k=2), texts)

    expected = [pipeline(text, top_k=2) for text in texts]
    assert response["token"].tolist() == [[each["token"] for each in row] for row in expected]


def test_text_without_a_mask_fails_alone():
    pipeline = bert_pipeline("fill-mask")
    definition = transformers_model(pipeline)
    requests = [{"text": np.array([[text]], object)} for text in (b"good [MASK]", b"good")]

    right, wrong = definition.infer_func(requests)

    assert right["token"].shape == (1, 5)
    assert "mask_token" in str(wrong)


def test_feature_extraction_returns_the_features_of_all_tokens():
    pipeline = bert_pipeline("feature-extraction")

    definition = transformers_model(pipeline)

    assert definition.config.batching is False
    assert definition.outputs == [Tensor((-1, 16), np.float32, "features")]
    (response,) = definition.infer_func([{"text": np.array([b"very good text"], object)}])
    assert response["features"] == pytest.approx(np.array(pipeline("very good text")[0]))


@pytest.mark.parametrize("padding", [{"padding_side": "left"}, {"padding_side": "right"}, {"pad_token": None}])
def test_text_generation_continues_each_text(padding):
    pipeline = gpt_pipeline(**padding)

    definition = transformers_model(pipeline, max_new_tokens=4, do_sample=False)

    assert definition.outputs == [Tensor((1,), bytes, "generated_text")]
    expected = [pipeline(text, max_new_tokens=4, do_sample=False)[0]["generated_text"] for text in TEXTS]
    assert served(definition, TEXTS)["generated_text"].ravel().tolist() == expected


def test_image_classification_accepts_files():
    config = transformers.ViTConfig(**SMALL, image_size=32, patch_size=16, num_labels=3)
    pipeline = transformers.pipeline(
        "image-classification",
        model=transformers.ViTForImageClassification(config).eval(),
        image_processor=transformers.ViTImageProcessor(size={"height": 32, "width": 32}),
    )

    definition = transformers_model(pipeline, top_k=2)

    assert definition.inputs == [Tensor((1,), bytes, "image", media_type="image/*")]
    response = served(definition, [png("red"), png("blue")], "image")
    expected = [pipeline(Image.new("RGB", (40, 20), color), top_k=2) for color in ("red", "blue")]
    assert response["score"] == pytest.approx(np.array([[each["score"] for each in row] for row in expected]), abs=1e-5)


def test_speech_recognition_accepts_samples(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "A": 5}))
    config = transformers.Wav2Vec2Config(
        **SMALL, vocab_size=6, conv_dim=(8,), conv_stride=(100,), conv_kernel=(100,), num_feat_extract_layers=1
    )
    pipeline = transformers.pipeline(
        "automatic-speech-recognition",
        model=transformers.Wav2Vec2ForCTC(config).eval(),
        tokenizer=transformers.Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json")),
        feature_extractor=transformers.Wav2Vec2FeatureExtractor(),
    )
    audio = np.sin(np.arange(8000, dtype=np.float32))

    definition = transformers_model(pipeline)

    assert definition.inputs == [Tensor((-1,), np.float32, "audio")]
    assert definition.outputs == [Tensor((1,), bytes, "text")]
    (response,) = definition.infer_func([{"audio": audio[np.newaxis]}])
    assert response["text"].item() == pipeline(audio)["text"]


def test_description_names_task_and_model():
    described = transformers_model(bert_pipeline("text-classification")).infer_func.__doc__

    assert described == "A pipeline for text-classification: BertForSequenceClassification."


def test_missing_argument_is_named_at_once():
    with pytest.raises(PyTritonBadParameterError, match=r"pipeline for zero-shot.* fails for a made-up text: .*label"):
        transformers_model(bert_pipeline("zero-shot-classification"))


def test_other_tasks_are_refused():
    with pytest.raises(
        PyTritonBadParameterError, match="does not serve pipelines for token-classification, but for te"
    ):
        transformers_model(bert_pipeline("token-classification"))


def test_model_in_place_of_a_pipeline_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"got an object of type Linear; .* goes to torch_model"):
        transformers_model(torch.nn.Linear(1, 1))


def test_helper_knows_the_words():
    assert tokenizer()("good")["input_ids"] == [5]
