"""Export of models as ONNX files, VNN-LIB properties and model cards, and to the Hugging Face hub."""

from linfnet.export.hub import push_to_hub as push_to_hub
from linfnet.export.hub import write_card as write_card
from linfnet.export.onnx import onnx_runner as onnx_runner
from linfnet.export.onnx import verify_onnx as verify_onnx
from linfnet.export.onnx import vnnlib_property as vnnlib_property
from linfnet.export.onnx import write_onnx as write_onnx
