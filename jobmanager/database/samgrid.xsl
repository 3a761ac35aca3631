<?xml version="1.0" encoding="UTF-8"?>
<!-- The documents of "samgrid export" as pages for people. -->
<xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
  <xsl:output method="html" encoding="UTF-8" doctype-system="about:legacy-compat"/>
  <!-- what links end with: xml, or html in the pages that are rendered on export -->
  <xsl:param name="suffix">xml</xsl:param>

  <xsl:template match="/overview">
    <xsl:call-template name="page">
      <xsl:with-param name="title">Grid jobs</xsl:with-param>
      <xsl:with-param name="content">
        <table>
          <tr><th>grid job</th><th>name</th><th>type</th><th>state</th><th>owner</th><th>submitted</th><th>local jobs</th></tr>
          <xsl:for-each select="grid-job">
            <tr>
              <td><a href="{@id}.{$suffix}"><xsl:value-of select="@id"/></a></td>
              <td><xsl:value-of select="@name"/></td>
              <td><xsl:value-of select="@type"/></td>
              <td><xsl:value-of select="(@outcome | @state[not(../@outcome)])"/></td>
              <td><xsl:value-of select="@owner"/></td>
              <td><xsl:value-of select="@submitted"/></td>
              <td>
                <xsl:for-each select="local-jobs">
                  <xsl:if test="position() > 1">, </xsl:if>
                  <xsl:value-of select="concat(@count, ' ', @state)"/>
                </xsl:for-each>
              </td>
            </tr>
          </xsl:for-each>
        </table>
      </xsl:with-param>
    </xsl:call-template>
  </xsl:template>

  <xsl:template match="/grid-job">
    <xsl:call-template name="page">
      <xsl:with-param name="title">Grid job <xsl:value-of select="@id"/></xsl:with-param>
      <xsl:with-param name="content">
        <p><a href="index.{$suffix}">all grid jobs</a></p>
        <table>
          <xsl:for-each select="@*"><tr><th><xsl:value-of select="name()"/></th><td><xsl:value-of select="."/></td></tr></xsl:for-each>
          <xsl:if test="problem"><tr><th>problem</th><td><xsl:value-of select="problem"/></td></tr></xsl:if>
          <xsl:for-each select="summary/item">
            <tr><th><xsl:value-of select="@name"/></th><td><xsl:value-of select="."/></td></tr>
          </xsl:for-each>
        </table>
        <h2>Request</h2>
        <table>
          <xsl:for-each select="request/attribute">
            <tr>
              <th><xsl:value-of select="@name"/></th>
              <td><xsl:for-each select=".//value"><code><xsl:value-of select="."/></code><xsl:text> </xsl:text></xsl:for-each></td>
            </tr>
          </xsl:for-each>
        </table>
        <h2>Local jobs</h2>
        <table>
          <tr>
            <th>number</th><th>id</th><th>state</th><th>exit code</th><th>host</th><th>started</th><th>ended</th>
            <th>CPU seconds</th><th>phases</th><th>reason</th>
          </tr>
          <xsl:apply-templates select="local-job"/>
        </table>
      </xsl:with-param>
    </xsl:call-template>
  </xsl:template>

  <xsl:template match="local-job">
    <tr>
      <td><xsl:value-of select="@index"/></td>
      <td><xsl:value-of select="@id"/></td>
      <td><xsl:value-of select="(@outcome | @state[not(../@outcome)])"/></td>
      <td><xsl:value-of select="@exit-code"/></td>
      <td><xsl:value-of select="@host"/></td>
      <td><xsl:value-of select="@started"/></td>
      <td><xsl:value-of select="@ended"/></td>
      <td><xsl:value-of select="@cpu-time"/></td>
      <td>
        <xsl:for-each select="phase">
          <xsl:if test="position() > 1">, </xsl:if>
          <xsl:value-of select="concat(@name, ': ', @done, ' of ', @total, ' ', @unit)"/>
        </xsl:for-each>
      </td>
      <td><xsl:value-of select="@reason"/></td>
    </tr>
  </xsl:template>

  <xsl:template name="page">
    <xsl:param name="title"/>
    <xsl:param name="content"/>
    <html lang="en">
      <head>
        <title><xsl:value-of select="$title"/></title>
        <meta name="viewport" content="width=device-width"/>
        <style>
          :root { color-scheme: light dark; font-family: sans-serif }
          table { border-collapse: collapse; display: block; overflow-x: auto }
          th, td { border: 1px solid #8886; padding: .2em .5em; text-align: left; vertical-align: top }
          td { max-width: 40em; overflow-wrap: break-word }
        </style>
      </head>
      <body>
        <h1><xsl:value-of select="$title"/></h1>
        <xsl:copy-of select="$content"/>
      </body>
    </html>
  </xsl:template>
</xsl:stylesheet>
