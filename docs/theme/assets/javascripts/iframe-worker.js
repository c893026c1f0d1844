/* Browsers start no worker from file://, and the search of a site in a folder needs one: its code runs in a frame. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const receive = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.loaded = new Promise((loaded) => this.frame.addEventListener("load", loaded))
      this.frame.srcdoc = "<!doctype html>"
      document.documentElement.append(this.frame)
      this.ready = this.loaded.then(() => new Promise((resolve) => {
        const inner = this.frame.contentWindow
        inner.postMessage = receive
        const script = inner.document.createElement("script")
        script.addEventListener("load", resolve)
        script.src = url
        inner.document.body.append(script)
      }))
    }
    postMessage(data) {
      this.ready.then(() => {
        const inner = this.frame.contentWindow
        inner.dispatchEvent(new inner.MessageEvent("message", { data }))
      })
    }
    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
