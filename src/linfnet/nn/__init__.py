"""PyTorch modules: distance layers, mean shift, normalisation, and the nets that consist of them."""

from linfnet.nn.classifier import Classifier as Classifier
from linfnet.nn.conv_stem import ConvStemNet as ConvStemNet
from linfnet.nn.distance import DistanceModule as DistanceModule
from linfnet.nn.distance import LpDistance as LpDistance
from linfnet.nn.distance import LpDistanceConv2d as LpDistanceConv2d
from linfnet.nn.means import means_at_infinity as means_at_infinity
from linfnet.nn.means import reestimate_means as reestimate_means
from linfnet.nn.means import share_means as share_means
from linfnet.nn.net import LinfNet as LinfNet
from linfnet.nn.nonexpansive import Nonexpansive as Nonexpansive
from linfnet.nn.normalization import MeanShift as MeanShift
from linfnet.nn.normalization import Normalize as Normalize
from linfnet.nn.packaged import ModelInfo as ModelInfo
from linfnet.nn.packaged import list_models as list_models
from linfnet.nn.proven import CheckedNet as CheckedNet
from linfnet.nn.proven import ProvenNet as ProvenNet
from linfnet.nn.sort_net import SortNet as SortNet
from linfnet.nn.sorted import SortDistance as SortDistance
from linfnet.nn.sparse import SparseDistance as SparseDistance
from linfnet.nn.sparse_net import SparseNet as SparseNet
from linfnet.nn.weights import count_parameters as count_parameters
from linfnet.nn.weights import load_weights as load_weights
from linfnet.nn.wrapped import WrappedNet as WrappedNet
