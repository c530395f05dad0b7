// A page that is opened from a disk may start no Worker, and the site's search runs in one. This one
// runs in a hidden frame. mkdocs-material would fetch another such file from the network.
class FrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    addEventListener("message", event => {
      if (event.source !== this.frame.contentWindow) return;
      const answer = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(answer);
      this.onmessage?.(answer);
    });
    const inside = this.frame.contentDocument;
    inside.open();
    inside.write(`<body><script>
      postMessage = data => parent.postMessage(data, "*");
      importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(done => {
        const script = document.createElement("script");
        script.src = url;
        script.onload = done;
        document.body.append(script);
      })), Promise.resolve());
    <\/script><script src="${url}"><\/script></body>`);
    inside.close();
    this.loaded = new Promise(done => { this.frame.contentWindow.onload = done; });
  }

  postMessage(data) {
    this.loaded.then(() => {
      const asked = new MessageEvent("message", { data: structuredClone(data) });
      this.frame.contentWindow.dispatchEvent(asked);
    });
  }

  terminate() { this.frame.remove(); }
}

if (location.protocol === "file:") window.Worker = FrameWorker;
