// Perfetto's trace processor: requests of its RPC protocol from stdin, replies to stdout.
// node trace_processor.js FOLDER, where Perfetto's page has engine_bundle.js and trace_processor*.wasm. The bundle is a
// program for a worker of a browser: it gets the few things of a browser that it uses, and does not see Node's process.
"use strict";
const fs = require("fs");
const path = require("path");

const folder = process.argv[2];

class FileRequest {
  open(method, name) {
    this.path = path.join(folder, path.basename(name));
  }
  send() {
    this.response = fs.readFileSync(this.path);
  }
}

const port = {
  set onmessage(handler) {
    process.stdin.on("data", (data) => handler({ data }));
  },
  postMessage: (data) => process.stdout.write(data),
};

process.on("uncaughtException", (error) => {
  console.error(error.stack); // without the source, of which a line has 100 kB
  process.exit(1);
});
const worker = { location: { href: "file:///" } };
const source = fs.readFileSync(path.join(folder, "engine_bundle.js"), "utf8");
new Function("self", "WorkerGlobalScope", "XMLHttpRequest", "process", "console", source)(
  worker, Object, FileRequest, undefined, new console.Console(process.stderr));
worker.onmessage({ data: port });
