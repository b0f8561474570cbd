"""A local web page that classifies, certifies and attacks a drawing or a photograph, and the JSON API behind it."""

from linfnet.serve.app import bind as bind
from linfnet.serve.app import create_app as create_app
from linfnet.serve.app import run_server as run_server
from linfnet.serve.app import url_of as url_of
from linfnet.serve.service import Service as Service
