"""scikit-learn's estimators: the inputs and outputs that are found, and refused arguments."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import DBSCAN, KMeans
from sklearn.compose import make_column_transformer
from sklearn.dummy import DummyRegressor
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.feature_extraction.text import HashingVectorizer, TfidfVectorizer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline, make_union
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, PowerTransformer, StandardScaler
from sklearn.svm import SVC

from pytriton.adapters import sklearn_model
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.proxy.types import Request

X = np.array([[0, 0], [0, 1], [3, 3], [3, 4], [6, 6], [6, 7]], float)
Y = np.array([0, 0, 1, 1, 2, 2])
COLORS = np.array(["red", "green", "blue"])[Y]
TEXTS = ["good", "very good", "bad", "very bad", "so so", "so what"]
FRAME = pd.DataFrame({"size": X[:, 0], "color": COLORS, "count": Y})


def served(definition, outputs=None, **inputs):
    """The response to one request."""
    return definition.infer_func([Request(inputs, requested_output_names=outputs)])[0]


def bytes_of(strings):
    column = np.empty((len(strings), 1), object)
    column[:, 0] = [string.encode() for string in strings]
    return column


def test_classifier_has_features_label_and_probability():
    classifier = LogisticRegression().fit(X, Y)

    definition = sklearn_model(classifier)

    assert definition.inputs == [Tensor((2,), np.float64, "features")]
    assert definition.outputs == [Tensor((1,), np.int64, "label"), Tensor((3,), np.float64, "probability")]
    assert definition.config == ModelConfig(max_batch_size=64)
    response = served(definition, features=X)
    assert response["label"].ravel().tolist() == classifier.predict(X).tolist()
    assert response["probability"].tolist() == classifier.predict_proba(X).tolist()


def test_labels_may_be_strings():
    definition = sklearn_model(LogisticRegression().fit(X, COLORS))

    assert definition.outputs[0] == Tensor((1,), bytes, "label")
    assert served(definition, features=X)["label"].ravel().tolist() == COLORS.tolist()


def test_regressor_has_a_prediction():
    definition = sklearn_model(LinearRegression().fit(X, Y))

    assert definition.outputs == [Tensor((1,), np.float64, "prediction")]


def test_regressor_of_several_targets_has_one_vector():
    definition = sklearn_model(RandomForestRegressor(2).fit(X, X))

    assert definition.outputs == [Tensor((2,), np.float64, "prediction")]


def test_classifier_of_several_targets_has_probabilities_for_each():
    forest = RandomForestClassifier(2, random_state=0).fit(X, np.stack([Y, Y % 2], axis=1))

    definition = sklearn_model(forest)

    assert [(tensor.name, tensor.shape) for tensor in definition.outputs] == [
        ("label", (2,)),
        ("probability_1", (3,)),
        ("probability_2", (2,)),
    ]
    assert served(definition, features=X)["probability_2"].tolist() == forest.predict_proba(X)[1].tolist()


@pytest.mark.parametrize(
    ("estimator", "dtype"), [(KMeans(2, n_init=1), np.int32), (IsolationForest(n_estimators=2), np.int64)]
)
def test_clusters_and_outliers_are_labels(estimator, dtype):
    assert sklearn_model(estimator.fit(X)).outputs == [Tensor((1,), dtype, "label")]


def test_classifier_without_probabilities_has_a_label():
    assert [tensor.name for tensor in sklearn_model(SVC().fit(X, Y)).outputs] == ["label"]


def test_pipeline_and_search_are_estimators():
    search = GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {}, cv=2).fit(X, Y)

    assert sklearn_model(search).inputs == [Tensor((2,), np.float64, "features")]


@pytest.mark.parametrize("arguments", [{"dtype": np.float32}, {"example": X[:1].astype(np.float32)}])
def test_features_have_the_requested_type(arguments):
    assert sklearn_model(LogisticRegression().fit(X, Y), **arguments).inputs[0].datatype.name == "FP32"


@pytest.mark.parametrize(
    "vectorizer",
    [TfidfVectorizer(), HashingVectorizer(), make_union(TfidfVectorizer(), TfidfVectorizer(analyzer="char"))],
    ids=["tf-idf", "hashing", "union"],
)
def test_pipeline_that_starts_with_a_vectorizer_accepts_text(vectorizer):
    pipeline = make_pipeline(vectorizer, LogisticRegression()).fit(TEXTS, COLORS)

    definition = sklearn_model(pipeline)

    assert definition.inputs == [Tensor((1,), bytes, "text")]
    response = served(definition, text=bytes_of(TEXTS))
    assert response["probability"].tolist() == pipeline.predict_proba(TEXTS).tolist()


def test_search_over_a_text_pipeline_accepts_text():
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())

    assert sklearn_model(GridSearchCV(pipeline, {}, cv=2).fit(TEXTS, Y)).inputs[0].name == "text"


def test_example_of_strings_makes_the_input_text():
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(TEXTS, Y)

    assert sklearn_model(pipeline, example=TEXTS).inputs == [Tensor((1,), bytes, "text")]


def test_features_may_be_strings():
    pipeline = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(COLORS[:, None], Y)

    definition = sklearn_model(pipeline, example=COLORS[:1, None])

    assert definition.inputs == [Tensor((1,), bytes, "features")]
    assert served(definition, features=bytes_of(COLORS))["label"].ravel().tolist() == Y.tolist()


def test_example_of_a_frame_makes_an_input_of_each_column():
    transformer = make_column_transformer((OneHotEncoder(), ["color"]), remainder="passthrough")
    pipeline = make_pipeline(transformer, LogisticRegression()).fit(FRAME, Y)

    definition = sklearn_model(pipeline, example=FRAME)

    assert definition.inputs == [
        Tensor((1,), np.float64, "size"),
        Tensor((1,), bytes, "color"),
        Tensor((1,), np.int64, "count"),
    ]
    response = served(definition, size=X[:, :1], color=bytes_of(COLORS), count=Y[:, None])
    assert response["probability"].tolist() == pipeline.predict_proba(FRAME).tolist()


class RowFinder(DummyRegressor):
    """Predicts in which row of what it was fitted to a value is; refuses a frame with other types."""

    def fit(self, X, y):  # noqa: N803
        self.frame_ = X
        return super().fit(X, y)

    def predict(self, X):  # noqa: N803
        pd.testing.assert_series_equal(X.dtypes, self.frame_.dtypes)
        fitted = self.frame_["column"].tolist()
        return np.array([fitted.index(value) for value in X["column"]])


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("column", "sent"),
    [
        (pd.Categorical(["b", "a", "c"], categories=["c", "b", "a"]), bytes_of(["b", "a", "c"])),
        (pd.Categorical([30, 10, 20]), np.array([[30], [10], [20]])),
        (pd.cut([1.5, 0.5, 2.5], [0, 1, 2, 3]), bytes_of(["(1, 2]", "(0, 1]", "(2, 3]"])),
        (pd.array([3, 1, 2], dtype="Int64"), np.array([[3], [1], [2]])),
        (np.array([3, 1, 2], np.int8), np.array([[3], [1], [2]], np.int8)),
    ],
)
def test_columns_have_the_types_of_the_example(column, sent):
    frame = pd.DataFrame({"column": column})

    definition = sklearn_model(RowFinder().fit(frame, [0, 0, 0]), example=frame)

    assert served(definition, column=sent)["prediction"].ravel().tolist() == [0, 1, 2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [object, "str"])
@pytest.mark.parametrize("column", [["b", "a", None], [None, "b", "a"]])
def test_an_empty_text_is_a_missing_one(column, dtype):
    frame = pd.DataFrame({"column": pd.Series(column, dtype=dtype)})
    encoder = OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(make_column_transformer((encoder, ["column"])), LinearRegression()).fit(frame, [1, 2, 3])

    definition = sklearn_model(model, example=frame)

    sent = bytes_of([value or "" for value in column])
    predicted = served(definition, column=sent)["prediction"].ravel().tolist()
    assert predicted == pytest.approx(model.predict(frame).tolist())


def test_booleans_may_be_missing_in_the_example():
    frame = pd.DataFrame({"column": pd.array([None, True, False], dtype="boolean")})
    model = HistGradientBoostingClassifier().fit(frame, [0, 1, 0])

    definition = sklearn_model(model, example=frame)

    assert definition.inputs == [Tensor((1,), np.bool_, "column")]
    sent = np.array([[True], [False]])
    assert served(definition, column=sent)["label"].ravel().tolist() == model.predict(frame[1:]).tolist()


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            pd.Series([1, 2, None], dtype=object),
            "column 'a' has the dtype object and holds 1, which would arrive as text",
        ),
        (pd.Series([True, "x"], dtype=object), "holds True, which would arrive as text"),
        (pd.to_timedelta([1, 2, 3]), r"the column 'a' has durations.*total_seconds\(\)"),
    ],
)
def test_columns_that_clients_cannot_send_are_refused(column, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        sklearn_model(LogisticRegression().fit(X, Y), example=pd.DataFrame({"a": column}))


def test_columns_of_one_name_are_refused():
    with pytest.raises(PyTritonBadParameterError, match="several columns of the name 'a'"):
        sklearn_model(LogisticRegression().fit(X, Y), example=pd.DataFrame(X, columns=["a", "a"]))


@pytest.mark.filterwarnings("error")
def test_values_that_are_no_category_are_missing():
    frame = pd.DataFrame({"color": pd.Categorical(COLORS), "size": X[:, 0]})
    classifier = HistGradientBoostingClassifier(categorical_features="from_dtype").fit(frame, Y)

    definition = sklearn_model(classifier, example=frame)

    response = served(definition, color=bytes_of(["purple"] * 6), size=X[:, :1])
    missing = frame.assign(color=pd.Categorical([None] * 6, categories=frame["color"].cat.categories))
    assert response["probability"].tolist() == classifier.predict_proba(missing).tolist()


@pytest.mark.filterwarnings("error")
def test_names_of_features_are_kept():
    frame = pd.DataFrame(X, columns=["a", "b"])
    pipeline = make_pipeline(make_column_transformer((StandardScaler(), ["b"])), LinearRegression()).fit(frame, Y)

    definition = sklearn_model(pipeline)

    assert definition.inputs == [Tensor((2,), np.float64, "features")]
    assert served(definition, features=X)["prediction"].ravel().tolist() == pipeline.predict(frame).tolist()


class Counted(LogisticRegression):
    """Counts how often probabilities are computed."""

    calls = 0

    def predict_proba(self, X):  # noqa: N803
        self.calls += 1
        return super().predict_proba(X)


@pytest.mark.parametrize(("wanted", "calls"), [(["label"], 0), (["probability"], 1), (None, 1)])
def test_probabilities_that_are_not_requested_are_not_computed(wanted, calls):
    classifier = Counted().fit(X, Y)
    definition = sklearn_model(classifier)
    classifier.calls = 0

    response = served(definition, wanted, features=X)

    assert classifier.calls == calls
    assert set(wanted or response) <= set(response)


def test_processes_have_a_copy():
    first, second = sklearn_model(LogisticRegression().fit(X, Y), processes=2).infer_func

    assert isinstance(first, ProcessInstance)
    assert first == second
    assert first.factory(*first.args)([{"features": X}])[0]["label"].ravel().tolist() == Y.tolist()


def test_description_has_the_classes():
    described = sklearn_model(LogisticRegression().fit(X, COLORS)).infer_func.__doc__

    assert described == "LogisticRegression of scikit-learn. Its classes: blue, green, red."


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (LogisticRegression(), "this LogisticRegression is not fitted; call its method fit"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "this Pipeline is not fitted"),
        (LogisticRegression, "is not an estimator"),
        ("model.pkl", "sklearn_model got 'model.pkl', which is not an estimator"),
        (DBSCAN().fit(X), "DBSCAN has no method predict"),
        (StandardScaler().fit(X), "StandardScaler has no method predict"),
    ],
)
def test_objects_without_predict_are_refused(estimator, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        sklearn_model(estimator)


def test_error_for_a_sample_of_zeros_suggests_an_example():
    positive = make_pipeline(PowerTransformer("box-cox"), LinearRegression()).fit(X + 1, Y)

    with pytest.raises(
        PyTritonBadParameterError,
        match=r"fails for a made-up sample: .*positive.*[^.]\. Pass a sample .*example=X\[:1\]",
    ):
        sklearn_model(positive)
    assert sklearn_model(positive, example=X + 1).inputs == [Tensor((2,), np.float64, "features")]


@pytest.mark.parametrize(
    ("example", "message"),
    [
        (X[:, :1], "LogisticRegression.predict fails for the example: X has 1 features"),
        (X[0], "the example is a ndarray and not rows"),
        ({"a": 1.0, "b": 2.0}, "the example is a dict and not rows"),
        ([{"a": 1.0, "b": 2.0}], "the example is a list and not rows"),
        (pd.DataFrame({"a": ["x"], "b": [2.0]}).iloc[0], "the example is a Series and not rows"),
        (X[:0], r"the example has shape \(0, 2\)"),
        ([], r"the example has shape \(0,\)"),
    ],
)
def test_invalid_example_is_refused(example, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        sklearn_model(LogisticRegression().fit(X, Y), example=example)


def test_dates_are_sent_as_text():
    def year(frame):
        return frame.assign(built=frame["built"].dt.year)

    frame = pd.DataFrame({"rooms": [1, 2], "built": pd.to_datetime(["1990-01-31", "2000-02-28"])})
    rent = make_pipeline(FunctionTransformer(year), LinearRegression()).fit(frame, [1.0, 2.0])

    definition = sklearn_model(rent, example=frame)

    assert definition.inputs[1] == Tensor((1,), bytes, "built")
    built = np.array([[b"1990-01-31"], [b"2000-02-28T12:30:00"]], object)
    predicted = served(definition, rooms=np.array([[1], [2]]), built=built)["prediction"]
    assert predicted.ravel().tolist() == pytest.approx([1.0, 2.0])


def test_number_of_processes_is_checked():
    with pytest.raises(PyTritonBadParameterError, match="sklearn_model: processes is 'two'"):
        sklearn_model(KNeighborsClassifier().fit(X, Y), processes="two")
