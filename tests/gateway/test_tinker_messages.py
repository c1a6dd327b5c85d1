"""Tinker's binary messages, compared with `protobuf` and with the client library."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_agents.gateway.tinker import messages, wire
from jaxrl_agents.types import Generation

INTEGERS = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(st.tuples(st.integers(1, 5000), INTEGERS | st.floats() | st.binary())))
@settings(max_examples=60, deadline=None)
def test_fields_are_read_as_they_were_written(pairs):
  read = list(wire.fields(b"".join(wire.write(number, value) for number, value in pairs)))
  assert [number for number, _ in read] == [number for number, _ in pairs]
  for (_, found), (_, value) in zip(read, pairs, strict=True):
    if isinstance(value, int):
      assert wire.signed(found) == value
    elif isinstance(value, float):
      assert wire.double(found) == value or value != value
    else:
      assert found == value


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_bytes_that_are_no_message_are_refused_in_words(raw):
  try:
    messages.read_forward_backward(raw)
  except ValueError as error:
    assert str(error)


def test_a_request_is_read_as_protobuf_wrote_it():
  made = protobuf_classes()
  request = made["ForwardBackwardRequest"](model_id="m:train:0", seq_id=7, loss_fn="ppo")
  request.loss_fn_config["clip_low_threshold"] = 0.5
  request.forward_only = True
  datum = request.data.add()
  for part in ([1, 2], [3]):
    datum.model_input.add().encoded_text.tokens = np.array(part, "<i4").tobytes()
  tensor = datum.loss_fn_inputs["advantages"]
  tensor.dense, tensor.dtype = np.array([0.5, -1, 2], "<f4").tobytes(), 1
  tensor.shape.append(3)
  targets = datum.loss_fn_inputs["target_tokens"]
  targets.dense, targets.dtype = np.array([2, 3, 4], "<i8").tobytes(), 2
  read = messages.read_forward_backward(request.SerializeToString())
  assert (read.model_id, read.seq_id, read.loss, read.forward_only) == ("m:train:0", 7, "ppo", True)
  assert read.options == {"clip_low_threshold": 0.5}
  (one,) = read.data
  assert one.tokens.tolist() == [1, 2, 3] and one.tokens.dtype == np.int32
  assert one.inputs["advantages"].tolist() == [0.5, -1, 2]
  assert one.inputs["target_tokens"].tolist() == [2, 3, 4]


def test_replies_are_read_by_protobuf_as_they_were_meant():
  made = protobuf_classes()
  raw = messages.write_output({"loss:sum": -2.5}, [np.float32([-1, -2]), np.float32([-3])])
  output = made["ForwardBackwardOutput"].FromString(raw)
  assert dict(output.metrics) == {"loss:sum": -2.5}
  (record,) = output.loss_fn_outputs
  assert (record.type_tag, record.num_datums) == ("ArrayRecord", 2)
  tensor = record.fields["logprobs"]
  assert np.frombuffer(tensor.offsets, "<i8").tolist() == [0, 8, 12]  # bytes, not numbers
  assert np.frombuffer(tensor.data, "<f4").tolist() == [-1, -2, -3]
  raw = messages.write_samples([(generation([4, 5]), False)], np.float32([np.nan, -1]))
  reply = made["SampleResponse"].FromString(raw)
  (sequence,) = reply.sequences
  assert sequence.stop_reason == messages.LENGTH
  assert np.frombuffer(sequence.tokens, "<i4").tolist() == [4, 5]
  assert np.frombuffer(reply.prompt_logprobs, "<f4")[1] == -1


def test_images_and_wrong_sizes_are_refused():
  image = wire.write(2, wire.write(1, b"png"))
  with pytest.raises(ValueError, match="reads tokens only"):
    messages.read_forward_backward(wire.write(3, wire.write(1, image)))
  tensor = wire.write(1, b"\0" * 8) + wire.write(3, 1) + wire.write(4, wire.write_varint(3))
  entry = wire.write(1, "weights") + wire.write(2, tensor)
  with pytest.raises(ValueError, match=r"weights has shape \[3\] and 2 numbers"):
    messages.read_forward_backward(wire.write(3, wire.write(2, entry)))


def test_the_client_library_writes_and_reads_the_same():
  """Skipped where `tinker` is not installed."""
  types = pytest.importorskip("tinker.types")
  request_conv = pytest.importorskip("tinker.proto.request_conv")
  response_conv = pytest.importorskip("tinker.proto.response_conv")
  datum = types.Datum(
    model_input=types.ModelInput.from_ints([1, 2]),
    loss_fn_inputs={"target_tokens": [2, 3], "weights": [1.0, -0.5]},
  )
  asked = types.ForwardBackwardRequest(
    forward_backward_input=types.ForwardBackwardInput(data=[datum], loss_fn="cross_entropy"),
    model_id="m",
    seq_id=1,
  )
  raw = request_conv.forward_backward_request_to_proto(asked).SerializeToString()
  (read,) = messages.read_forward_backward(raw).data
  assert read.inputs["weights"].tolist() == [1.0, -0.5]
  output = response_conv.deserialize_forward_backward_output(
    messages.write_output({"loss:sum": 1.0}, [np.float32([-1, -2]), np.float32([-3])])
  )
  assert [d["logprobs"].data for d in output.loss_fn_outputs] == [[-1, -2], [-3]]
  reply = response_conv.deserialize_sample_response(
    messages.write_samples([(generation([4]), True)], None)
  )
  assert reply.sequences[0].tokens == [4] and reply.sequences[0].stop_reason == "stop"


def generation(tokens):
  n = len(tokens)
  return Generation(
    np.int32(tokens), -np.ones(n, np.float32), np.zeros(n, np.int32), None, "length"
  )


def protobuf_classes():
  """Classes of the messages, from a description of its own, as far as the tests need them."""
  descriptor = pytest.importorskip("google.protobuf.descriptor_pb2")
  pool = pytest.importorskip("google.protobuf.descriptor_pool").DescriptorPool()
  factory = pytest.importorskip("google.protobuf.message_factory")
  file = descriptor.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
  kinds = {"double": 1, "int64": 3, "int32": 5, "bool": 8, "string": 9, "bytes": 12}

  def add(parent, name, **fields):
    message = parent.add(name=name)
    for field, (number, kind, *repeated) in fields.items():
      made = message.field.add(name=field, number=number, label=3 if repeated else 1)
      if kind in kinds:
        made.type = kinds[kind]
      elif kind.startswith("map "):
        entry = f"{''.join(p.title() for p in field.split('_'))}Entry"
        pair = add(message.nested_type, entry, key=(1, "string"), value=(2, kind[4:]))
        pair.options.map_entry = True
        made.type, made.type_name, made.label = 11, f".t.{name}.{entry}", 3
      else:
        made.type, made.type_name = 11, f".t.{kind}"
    return message

  top = file.message_type
  add(top, "Text", tokens=(1, "bytes"))
  add(top, "Chunk", encoded_text=(1, "Text"))
  add(top, "Tensor", dense=(1, "bytes"), dtype=(3, "int32"), shape=(4, "int64", True))
  add(top, "Datum", model_input=(1, "Chunk", True), loss_fn_inputs=(2, "map Tensor"))
  add(
    top,
    "ForwardBackwardRequest",
    model_id=(1, "string"),
    seq_id=(2, "int32"),
    data=(3, "Datum", True),
    loss_fn=(4, "string"),
    loss_fn_config=(5, "map double"),
    forward_only=(6, "bool"),
  )
  add(top, "BatchedTensor", data=(1, "bytes"), offsets=(2, "bytes"), dtype=(3, "int32"))
  add(
    top,
    "ArrayRecord",
    type_tag=(1, "string"),
    fields=(2, "map BatchedTensor"),
    num_datums=(3, "int64"),
  )
  add(
    top,
    "ForwardBackwardOutput",
    kind=(1, "string"),
    loss_fn_outputs=(2, "ArrayRecord", True),
    metrics=(3, "map double"),
  )
  add(top, "Sequence", stop_reason=(1, "int32"), tokens=(2, "bytes"), logprobs=(3, "bytes"))
  add(top, "SampleResponse", sequences=(1, "Sequence", True), prompt_logprobs=(2, "bytes"))
  pool.Add(file)
  names = [message.name for message in file.message_type]
  return {n: factory.GetMessageClass(pool.FindMessageTypeByName(f"t.{n}")) for n in names}
